"""Build the affinity terms of `spec.topology`, `spec.gpuProduct` and `spec.exclusiveNodes`.

Each field becomes one term of the pods' affinity. So only the scheduler decides on placement, and
its message states why a pod waits. The terms match pods by the label with the job's uid, which no
podTemplate can change. After a mix of GPU products, the product that the operator chose has the
same term as `spec.gpuProduct` (`reconcile.gpu_products`).

- A required topology is an affinity of the pods to each other. The scheduler lets the first pod
  pass, because it matches its own term while no other pod does. That pod chooses the domain.
- Exclusive nodes are an anti-affinity to the worker pods of all jobs in all namespaces. The
  scheduler obeys the anti-affinity of running pods too, so that later jobs keep off their nodes.
"""

from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.placement import HOSTNAME_LABEL, Topology, TopologyMode
from ddp_operator.builders import names
from ddp_operator.builders.affinity import (
    OTHER_PODS,
    PODS,
    PREFERRED,
    REQUIRED,
    NodeLabel,
    Term,
)
from ddp_wire import contract

GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Label with which NVIDIA's GPU feature discovery names the GPUs of a Kubernetes node."""
_WEIGHT = 100
"""Highest weight that Kubernetes allows for a preference."""


def placement_terms(job: DDPJob, gpu_product_label: str) -> list[Term | NodeLabel]:
    """Return the affinity terms for the placement fields of a job's spec.

    Args:
        job: The job.
        gpu_product_label: Label of Kubernetes nodes that names the product of their GPUs.
    """
    spec = job.spec
    terms: list[Term | NodeLabel] = []
    chosen = job.status.pods.gpu_product if job.status.pods is not None else None
    if (product := spec.gpu_product or chosen) is not None:
        terms.append(NodeLabel(gpu_product_label, product))
    if spec.topology is not None:
        terms.append(_packed(job, spec.topology))
    if spec.exclusive_nodes:
        terms.append(_exclusive())
    return terms


def _packed(job: DDPJob, topology: Topology) -> Term:
    """Return the affinity term that packs the pods of a job into one topology domain."""
    value: dict[str, Any] = {
        "labelSelector": {"matchLabels": names.pod_selector(job)},
        "topologyKey": topology.key,
    }
    if topology.mode is TopologyMode.REQUIRED:
        return Term(PODS, REQUIRED, value)
    return Term(PODS, PREFERRED, {"weight": _WEIGHT, "podAffinityTerm": value})


def _exclusive() -> Term:
    """Return the anti-affinity term that keeps a pod off nodes with other worker pods."""
    any_job = {"matchExpressions": [{"key": contract.LABEL_JOB_UID, "operator": "Exists"}]}
    return Term(
        OTHER_PODS,
        REQUIRED,
        {
            "labelSelector": any_job,
            "namespaceSelector": {},  # All namespaces; without it, only that of the pod.
            "topologyKey": HOSTNAME_LABEL,
        },
    )
