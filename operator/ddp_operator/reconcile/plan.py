"""What shall be done about one job."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ddp_operator.api.status import DDPJobStatus


@dataclass(frozen=True)
class CreateService:
    """Create the headless Service."""

    manifest: dict[str, Any]


@dataclass(frozen=True)
class CreatePod:
    """Create a worker pod."""

    manifest: dict[str, Any]


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod, and no later one of the same name."""

    name: str
    uid: str
    grace_seconds: int | None = None
    """None leaves it to the pod; 0 is for pods whose container has ended."""


@dataclass(frozen=True)
class SetAttempt:
    """Tell a living pod which attempt to run, or to stop."""

    name: str
    uid: str
    value: str
    ip: str | None = field(default=None, compare=False)
    """Where its agent is told directly too, sooner than the kubelet tells it."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself; its children follow by ownership."""

    uid: str


Action = CreateService | CreatePod | DeletePod | SetAttempt | DeleteJob


class EventType(StrEnum):
    """Type of a Kubernetes Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class Event:
    """Something to tell the people who watch the job."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The outcome of a decision: the status to write, then what to do, then what to tell."""

    status: DDPJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_seconds: float | None = None
    """Look again after this time even when nothing happens."""
