"""Build the manifests of the peer operators: jobs with our pods, configuration and webhooks."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from bench.scale import bare_client

JSON = dict[str, Any]

PYTORCH_JOBS = "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainingruntimes"
TRAIN_JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs"
_RUNTIME = "torch-distributed"
_SET_BY_PEERS = {"hostname", "subdomain", "restartPolicy"}
_INSTALLED = {
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
}


def pod_template(pod: JSON, container: str) -> JSON:
    """Return a pod of our operator as the pod template for a peer operator's job.

    The spec is the same, so that the API server, the scheduler and kwok have the same work per pod.
    Only fields that every peer sets itself are absent.

    Args:
        pod: A pod of our operator, as the API server returns it.
        container: The container name that the peer requires.
    """
    bare = bare_client.template(pod)
    metadata = {key: bare["metadata"][key] for key in ("labels", "annotations")}
    spec = {key: value for key, value in bare["spec"].items() if key not in _SET_BY_PEERS}
    (only,) = spec["containers"]
    return {"metadata": metadata, "spec": spec | {"containers": [only | {"name": container}]}}


def pytorch_job(name: str, pods: int, pod: JSON) -> JSON:
    """Return a PyTorchJob whose pods rendezvous through c10d.

    It has workers only, because a Master would add an init container to each worker.
    """
    worker = {
        "replicas": pods,
        "restartPolicy": "Never",
        "template": pod_template(pod, "pytorch"),
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": "8",
            "elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": pods, "maxReplicas": pods},
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


def training_runtime(pod: JSON) -> JSON:
    """Return the peer's runtime `torch-distributed`, with our pod in place of the original pod."""
    template = pod_template(pod, "node")
    template["spec"]["restartPolicy"] = "Never"
    ancestor = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {
        "name": "node",
        "template": {"metadata": {"labels": ancestor}, "spec": {"template": template}},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": _RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [node]}},
        },
    }


def train_job(name: str, pods: int) -> JSON:
    """Return a TrainJob that uses the runtime of `training_runtime`."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": _RUNTIME},
            "trainer": {"numNodes": pods},
        },
    }


def configuration(shipped: str, *changes: Mapping[str, Any]) -> str:
    """Return a configuration file of a peer with changes. Mappings are merged key by key."""
    document: JSON = yaml.safe_load(shipped)
    for change in changes:
        document = _merged(document, change)
    return yaml.safe_dump(document)


def _merged(old: Mapping[str, Any], change: Mapping[str, Any]) -> JSON:
    merged = dict(old)
    for key, value in change.items():
        before: Any = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(before, value) if both else value
    return merged


def to_install(documents: Iterable[JSON | None], namespace: str, port: int) -> list[JSON]:
    """Return the CRDs and webhooks from the manifests that a peer operator ships.

    The webhooks use a port of this machine through a Service of the type ExternalName, because the
    peer is a process here and not a pod.

    Args:
        documents: All documents of the manifests.
        namespace: The namespace of the peer.
        port: The port of the peer's webhook server.
    """
    found = [document for document in documents if document and document["kind"] in _INSTALLED]
    for document in found:
        for webhook in document.get("webhooks", ()):
            webhook["clientConfig"]["service"] |= {"namespace": namespace, "port": port}
    return found


def webhook_service(namespace: str, name: str) -> JSON:
    """Return a Service through which the API server reaches a webhook server on this machine."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
    }


def webhook_secret(namespace: str, name: str) -> JSON:
    """Return the empty Secret that a peer operator fills with its webhook certificate."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
    }
