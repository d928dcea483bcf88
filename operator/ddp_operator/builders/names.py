"""Names and labels of a job's children.

Names and labels depend only on the job, so a repeated creation cannot create a second child.
"""

import re
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


def made_claim_name(job_name: str) -> str:
    """Return the name of the claim that the operator creates for `checkpoint.claimTemplate`."""
    return f"{job_name}-checkpoints"


def claim_name(job: DDPJob) -> str | None:
    """Return the name of the claim of the checkpoints, or None for a job without checkpoints."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return None
    return checkpoint.claim_name or made_claim_name(job.metadata.name)


def init_pod_name(job: DDPJob, step: str, number: int) -> str:
    """Return the name of the pod of one try of an init step."""
    return f"{job.metadata.name}-init-{step}-{number}"


_CODE = re.compile(r"-code-([0-9a-f]{12})$")


def code_map_name(job_name: str, code_hash: str) -> str:
    """Return the name of the ConfigMap with the code of a job."""
    return f"{job_name}-code-{code_hash}"


def code_hash(job: DDPJob) -> str | None:
    """Return the hash in the name of the ConfigMap with the job's code, or None without one."""
    for volume in job.spec.volumes or []:
        found = _CODE.search(str((volume.config_map or {}).get("name")))
        if found is not None:
            return found[1]
    return None


_HOSTNAME_DIGITS = 4
"""Number of digits of the node index in a host name, because `nodes` is at most 9999."""


_LATER_GENERATION = re.compile(r"-g([1-9][0-9]{0,8})$")
"""End of a pod's name that differs from the name of the node's first pod."""


def pod_name(job: DDPJob, index: int, generation: int = 1) -> str:
    """Return the name of a worker pod. It does not depend on the number of nodes.

    A finalizer of another controller can keep the name of a pod that has ended. Then the next pod
    of the node has a higher generation, and a name of its own. The host name is the same.
    """
    first = hostname(job, index) if _is_old(job) else f"{job.metadata.name}-{index}"
    return first if generation == 1 else f"{first}-g{generation}"


def generation_of(name: str) -> int:
    """Return the generation in the name of a worker pod."""
    found = _LATER_GENERATION.search(name)
    return int(found[1]) if found else 1


def hostname(job: DDPJob, index: int) -> str:
    """Return the host name of a worker pod.

    The index is zero-padded so that the node rank equals the index: torchrun sorts nodes by their
    addresses as strings.
    """
    return _hostname_pattern(job).format(index=index)


def _hostname_pattern(job: DDPJob) -> str:
    """Return the format string of the host names. The job's name contains no braces."""
    digits = len(str(job.spec.nodes - 1)) if _is_old(job) else _HOSTNAME_DIGITS
    return f"{job.metadata.name}-{{index:0{digits}d}}"


def pod_address(job: DDPJob, index: int) -> str:
    """Return the DNS name of a worker pod, relative to the namespace of the job.

    The resolver completes the name with its first search domain.
    """
    return address_pattern(job).format(index=index)


def address_pattern(job: DDPJob) -> str:
    """Return the format string of the worker pods' DNS names, with the field `index`."""
    return f"{_hostname_pattern(job)}.{service_name(job)}"


def _is_old(job: DDPJob) -> bool:
    """Return whether an older operator named the pods of the current attempt.

    An older operator zero-padded names and host names to the width of the job's largest index. The
    next release drops this.
    """
    return job.status.pods is None and job.status.attempt_spec_hash is not None


def labels(job: DDPJob) -> dict[str, str]:
    """Return the labels that all children of a job have."""
    return {
        "app.kubernetes.io/name": "ddpjob",
        contract.LABEL_MANAGED_BY: contract.MANAGED_BY,
        contract.LABEL_JOB_NAME: job.metadata.name,
        contract.LABEL_JOB_UID: job.metadata.uid,
    }


def pod_selector(job: DDPJob) -> dict[str, str]:
    """Return the labels that select only this job's pods, and no pods of an earlier namesake."""
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
