"""Jobs on the network of their Kubernetes nodes share these nodes, because their ports differ.

The two nodes of the test cluster have an address each, but share the ports of one machine. So this
test also shows that each agent listens on the address of its own node only.
"""

from typing import Any

import pytest

from tests.cluster.support import Job, script_job
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

pytestmark = pytest.mark.cluster

HOST = {"procsPerNode": 1, "network": {"hostNetwork": True}}
SCRIPT = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
time.sleep(4)
dist.barrier()
"""
"""Ranks that stay for some seconds, so that two jobs run at the same time."""


def placed(job: Job) -> dict[str, Any]:
    """Return the address of each pod, by the name of its Kubernetes node."""
    return {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in job.pods()}


def test_two_jobs_train_on_the_network_of_the_same_nodes(cluster: Cluster, namespace: str) -> None:
    label = "pod-security.kubernetes.io/enforce=privileged"
    cluster.kubectl("label", "--overwrite", "namespace", namespace, label)
    jobs = [
        Job.apply(cluster, namespace, script_job(name, SCRIPT, **HOST)) for name in ("one", "two")
    ]
    eventually(lambda: all(job.reason == "Running" for job in jobs), "both jobs train", 90)
    statuses = [job.status for job in jobs]
    first = {status["pods"]["firstPort"] for status in statuses}
    assert first == {28200, 28266}
    addresses = {node.name: node.address for node in cluster.nodes}
    assert [placed(job) for job in jobs] == [addresses, addresses]
    for job in jobs:
        status = job.wait_for("Completed", 60)
        assert (status["attempt"], status.get("restarts", 0)) == (1, 0)
    eventually(
        lambda: all("firstPort" not in job.status["pods"] for job in jobs),
        "both blocks of ports are free",
        30,
    )
