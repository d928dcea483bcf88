"""Names and labels of a job's children.

They depend on the job alone, so a repeated creation cannot add a second child.
"""

from typing import Any

from ddp_operator.api.base import API_VERSION, KIND
from ddp_operator.api.job import DDPJob
from ddp_wire import contract


def service_name(job: DDPJob) -> str:
    """Return the name of the headless Service."""
    return job.metadata.name


def network_policy_name(job: DDPJob) -> str:
    """Return the name of the NetworkPolicy."""
    return job.metadata.name


_HOSTNAME_DIGITS = 4
"""Digits of a node index in a host name: `nodes` is at most 9999."""


def pod_name(job: DDPJob, index: int) -> str:
    """Return the name of a worker pod. It does not depend on the number of nodes."""
    return hostname(job, index) if _is_old(job) else f"{job.metadata.name}-{index}"


def hostname(job: DDPJob, index: int) -> str:
    """Return the host name of a worker pod.

    The index is zero-padded so that node rank = index, because torchrun sorts nodes by address as a
    string.
    """
    return _hostname_pattern(job).format(index=index)


def _hostname_pattern(job: DDPJob) -> str:
    """Return the format of the host names. A name of a job has no braces."""
    digits = len(str(job.spec.nodes - 1)) if _is_old(job) else _HOSTNAME_DIGITS
    return f"{job.metadata.name}-{{index:0{digits}d}}"


def pod_address(job: DDPJob, index: int) -> str:
    """Return the DNS name of a worker pod, relative to the namespace of the job.

    The first search domain of the resolver completes it.
    """
    return address_pattern(job).format(index=index)


def address_pattern(job: DDPJob) -> str:
    """Return the format of the DNS names of all worker pods, with their `index`."""
    return f"{_hostname_pattern(job)}.{service_name(job)}"


def _is_old(job: DDPJob) -> bool:
    """Return whether an older operator named the pods of the current attempt.

    That operator padded names and host names to the size of the job. The next release drops this.
    """
    return job.status.pods is None and job.status.attempt_spec_hash is not None


def labels(job: DDPJob) -> dict[str, str]:
    """Return the labels of all children."""
    return {
        "app.kubernetes.io/name": "ddpjob",
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_JOB_NAME: job.metadata.name,
        contract.LABEL_JOB_UID: job.metadata.uid,
    }


def pod_selector(job: DDPJob) -> dict[str, str]:
    """Return the labels that select this job's pods, but no pod of an older job of that name."""
    return {contract.LABEL_JOB_UID: job.metadata.uid}


def owner_reference(job: DDPJob) -> dict[str, Any]:
    """Return the owner reference by which the garbage collector deletes a child with its job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
