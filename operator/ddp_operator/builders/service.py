"""Build the headless Service that gives every worker pod a DNS name."""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_wire import contract


def build_service(job: DDPJob) -> dict[str, Any]:
    """Return the manifest of a job's Service.

    It publishes addresses before pods are ready, because a pod is ready only after its ranks have
    found their peers.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.service_name(job),
            "namespace": job.metadata.namespace,
            "labels": names.labels(job),
            "ownerReferences": [names.owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.pod_selector(job),
            "ports": [{"name": "agent", "port": contract.AGENT_PORT}],
        },
    }
