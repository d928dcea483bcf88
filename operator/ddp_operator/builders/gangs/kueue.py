"""Mark the pods of a job for Kueue, and read why Kueue does not admit them.

Kueue has no group object that a user creates. It builds a Workload when all pods of a group exist,
and holds the pods by a scheduling gate until the queue has room for all of them.
"""

from collections.abc import Mapping
from typing import Any

from ddp_operator.api.gang import GangStatus
from ddp_operator.api.job import DDPJob
from ddp_wire import contract

Manifest = dict[str, Any]

_PREFIX = "kueue.x-k8s.io/"
QUEUE = f"{_PREFIX}queue-name"
"""Label on a pod: the LocalQueue that admits it."""
GROUP = f"{_PREFIX}pod-group-name"
"""Label on a pod of a group: the name of the group and of its Workload."""
SIZE = f"{_PREFIX}pod-group-total-count"
"""Annotation on a pod of a group: the number of its pods."""
ROLE = f"{_PREFIX}role-hash"
"""Annotation on a pod of a group: pods with the same value are interchangeable."""
INDEX = f"{_PREFIX}pod-group-pod-index"
"""Label on a pod of a group: its place in the group, for topology-aware scheduling."""
RETRIABLE = f"{_PREFIX}retriable-in-group"
"""Annotation on a pod of a group: with NOT_RETRIABLE, the group ends with its last running pod."""
NOT_RETRIABLE = "false"
_FORCED_END = f"{_PREFIX}safe-to-forcefully-delete"
"""Annotation by which a pod lets Kueue end it on a lost Kubernetes node."""
MANAGED = f"{_PREFIX}managed"
"""Label, and finalizer of the same name, that Kueue's webhook adds to each pod that it holds."""
GROUP_ANNOTATIONS = (SIZE, ROLE, _FORCED_END)
"""Annotations with which the operator creates pods."""
_ROLE_OF_ALL = "workers"
"""Role of all pods of a group. Kueue computes it from the pods unless it is set. Then the affinity
that keeps a new pod off a Kubernetes node would give it another role, and Kueue would end the
group."""
_UID_CHARACTERS = 5
_NAME_CHARACTERS = 63
"""Maximum length of a group's name, in characters, because it is a label."""


def group_name(job: DDPJob, number: int) -> str:
    """Return the name of a job's group with a number.

    A part of the uid separates the group from those of an earlier job with the same name, whose
    pods may still be ending.
    """
    end = f"-{number}-{job.metadata.uid[:_UID_CHARACTERS]}"
    return job.metadata.name[: _NAME_CHARACTERS - len(end)] + end


def with_queue(pod: Manifest, gang: GangStatus) -> Manifest:
    """Return a pod that waits for the admission by the queue of a gang."""
    return _marked(pod, {QUEUE: gang.queue or ""}, {_FORCED_END: "true"})


def with_group(pod: Manifest, gang: GangStatus, index: int) -> Manifest:
    """Return a pod that Kueue admits together with the other pods of a gang."""
    labels = {GROUP: gang.group, INDEX: str(index)}
    return _marked(pod, labels, {SIZE: str(gang.size), ROLE: _ROLE_OF_ALL})


def group_of(metadata: Mapping[str, Any]) -> str:
    """Return the group of Kueue to which the operator has added a pod, or "".

    A job without a gang may name a group of its own in its podTemplate.
    """
    group = str((metadata.get("labels") or {}).get(GROUP) or "")
    own = (metadata.get("annotations") or {}).get(contract.ANNOTATION_GANG_GROUP)
    return group if group == own else ""


def why_waiting(workload: Mapping[str, Any]) -> str:
    """Return why a Workload is not admitted, or ""."""
    status = workload.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    evicted, reserved = conditions.get("Evicted", {}), conditions.get("QuotaReserved", {})
    found = []
    if (workload.get("spec") or {}).get("active") is False:
        found.append("the Workload is deactivated")
    if evicted.get("status") == "True":
        found.append(f"evicted ({evicted.get('reason')}): {evicted.get('message')}")
    if reserved.get("status") == "False" and reserved.get("message"):
        found.append(str(reserved["message"]))
    return "; ".join(found)


def _marked(pod: Manifest, labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    metadata = pod["metadata"]
    marks = {
        "labels": {**metadata["labels"], **labels},
        "annotations": {**metadata["annotations"], **annotations},
    }
    return {**pod, "metadata": {**metadata, **marks}}
