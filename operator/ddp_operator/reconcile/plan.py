"""The result of one reconcile: a status, actions, Events, and the time of the next reconcile."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.kinds import KINDS, ChildKind, row_name
from ddp_operator.builders.pod import build_pod
from ddp_wire.contract import AGENT_PORT
from ddp_wire.plain_text import plain_text


@dataclass(frozen=True)
class EnsureChild:
    """Action: create a child that is not a pod, or undo changes that another writer made to it."""

    manifest: dict[str, Any]

    @property
    def kind(self) -> ChildKind:
        """Kind of the child."""
        return KINDS[row_name(self.manifest)]

    @property
    def name(self) -> str:
        """Name of the child."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class CreatePod:
    """Action: create a worker pod.

    The manifest is built when the action runs. A plan that builds 9,999 manifests would block the
    event loop for seconds.
    """

    job: DDPJob
    index: int
    attempt: int
    defaults: Defaults
    job_secret: str | None = field(default=None, repr=False)
    """Secret that the job's living pods share, or None if the pods of the plan share a new
    secret."""
    generation: int = 1
    """Generation in the name of the pod."""

    @property
    def name(self) -> str:
        """Name of the pod."""
        return names.pod_name(self.job, self.index, self.generation)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the pod."""
        return build_pod(self.job, self.index, self.attempt, self.defaults, self.generation)


@dataclass(frozen=True)
class DeletePod:
    """Action: delete one pod. The uid protects a later pod with the same name."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """Grace period in seconds. None keeps the pod's own; 0 is for pods that have ended."""


@dataclass(frozen=True)
class DeleteChild:
    """Action: delete one child that is not a pod."""

    kind: str
    """Name of the kind's row in the table of kinds (`KINDS`)."""
    name: str
    uid: str


@dataclass(frozen=True)
class PatchClaim:
    """Action: change the size or the owner of the claim that the operator created for a job."""

    name: str
    uid: str
    patch: dict[str, Any]
    """Merge patch (RFC 7386) without the uid."""


@dataclass(frozen=True)
class EndPod:
    """Action: end all containers of a pod, but keep the pod and its logs."""

    name: str
    uid: str


@dataclass(frozen=True)
class EndGroup:
    """Action: mark one pod so that Kueue expects no successors of the ended pods of its group."""

    name: str
    """Name of the pod."""
    uid: str


@dataclass(frozen=True)
class DeleteWorkload:
    """Action: delete Kueue's Workload of a group, so that Kueue releases all pods of the group."""

    name: str
    """Name of the Workload and of the group."""


@dataclass(frozen=True)
class SetAttempt:
    """Action: order a living pod to run an attempt, or to stop."""

    name: str
    uid: str
    value: str
    ip: str | None = field(default=None, compare=False)
    """Address of the agent for a direct order, which arrives before the kubelet updates the
    annotation."""
    secret: str = field(default="", compare=False, repr=False)
    """Secret of the pod, which signs the direct order."""
    port: int = field(default=AGENT_PORT, compare=False)
    """Port of the agent for a direct order."""


@dataclass(frozen=True)
class DeleteJob:
    """Action: delete the job. The garbage collector deletes its children."""

    uid: str


Action = (
    EnsureChild
    | CreatePod
    | DeletePod
    | DeleteChild
    | DeleteWorkload
    | PatchClaim
    | EndPod
    | EndGroup
    | SetAttempt
    | DeleteJob
)


class EventType(StrEnum):
    """Type of a Kubernetes Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job."""

    type: EventType
    reason: str
    message: str

    def __post_init__(self) -> None:
        """Remove control characters, which quoted text in the message may contain."""
        object.__setattr__(self, "message", plain_text(self.message))


@dataclass(frozen=True)
class Plan:
    """Result of a decision: the status to write, then the actions, then the Events."""

    status: DDPJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_seconds: float | None = None
    """Seconds until the next reconcile if no event triggers one earlier; None for no limit."""
    undecided: bool = False
    """Whether there are faults whose root cause is not yet known."""
