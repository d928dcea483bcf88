"""Names and labels of a job's children.

Functions of the job alone, so that creating twice is harmless.
"""

from typing import Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import DDPJob
from ddp_wire import contract


def service_name(job: DDPJob) -> str:
    """Name of the headless Service."""
    return job.metadata.name


def pod_name(job: DDPJob, index: int) -> str:
    """Name of a worker pod.

    Zero-padded, because torchrun sorts nodes by their address as a string: so node rank = index.
    """
    width = len(str(job.spec.nodes - 1))
    return f"{job.metadata.name}-{index:0{width}d}"


def pod_address(job: DDPJob, index: int) -> str:
    """DNS name of a worker pod, relative to the namespace: the first search domain completes it."""
    return f"{pod_name(job, index)}.{service_name(job)}"


def labels(job: DDPJob) -> dict[str, str]:
    """Labels that all children carry."""
    return {
        "app.kubernetes.io/name": "ddpjob",
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_JOB_NAME: job.metadata.name,
        contract.LABEL_JOB_UID: job.metadata.uid,
    }


def pod_selector(job: DDPJob) -> dict[str, str]:
    """Labels that select exactly this job's pods, and no earlier job's of the same name."""
    return {contract.LABEL_JOB_UID: job.metadata.uid}


def owner_reference(job: DDPJob) -> dict[str, Any]:
    """Makes the garbage collector delete a child with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
