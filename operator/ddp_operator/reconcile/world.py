"""What was observed of one job and its children."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders import names
from ddp_wire import contract
from ddp_wire.contract import AgentStatus


@dataclass(frozen=True)
class Termination:
    """How a worker container ended."""

    exit_code: int
    reason: str
    """The kubelet's word, as OOMKilled."""
    at: datetime | None
    final: AgentStatus | None
    """The agent's last state, from the termination message."""


@dataclass(frozen=True)
class PodView:
    """What matters of a worker pod."""

    name: str
    uid: str
    index: int
    phase: str
    """Pending, Running, Succeeded, Failed or Unknown."""
    ready: bool = False
    attempt: str = ""
    """Value of the attempt annotation."""
    spec_hash: str = ""
    deleting: bool = False
    deletion_asked: datetime | None = None
    """When its deletion was asked for."""
    deletion_due: datetime | None = None
    """When its kubelet must have ended it."""
    node: str | None = None
    ip: str | None = None
    waiting: str | None = None
    """Why it does not run yet: the scheduler's or the kubelet's sentence."""
    reason: str | None = None
    """The pod's own reason when it failed as a whole, as Evicted."""
    disruption: str | None = None
    """Why Kubernetes told the pod to go: the reason of its DisruptionTarget condition."""
    termination: Termination | None = None

    @property
    def terminal(self) -> bool:
        """Whether its container will never run again."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True)
class World:
    """Everything a decision may depend on."""

    job: DDPJob
    now: datetime
    pods: tuple[PodView, ...] = ()
    service_exists: bool = False
    reports: Mapping[str, AgentStatus] = field(default_factory=dict)
    """Newest answers of agents, by pod uid."""
    blocked: str | None = None
    """What the API server refused when the last plan was carried out."""

    def pod(self, index: int) -> PodView | None:
        """The pod of a node: by its name, since a pod of another numbering is none of this gang."""
        name = names.pod_name(self.job, index)
        return next((p for p in self.pods if p.name == name), None)

    def report(self, pod: PodView) -> AgentStatus | None:
        """The pod's newest word: the answer of its agent, or what it left when it ended."""
        if pod.termination is not None and pod.termination.final is not None:
            return pod.termination.final
        return self.reports.get(pod.uid)


def ended_in(pod: PodView, status: DDPJobStatus) -> bool:
    """Whether the end of a terminal pod belongs to the attempt of a status.

    By the agent's last word: the annotation may name the next attempt, which came too late. Without
    one by the clock: the word of a container's end comes late when its kubelet had been away.
    """
    end = pod.termination
    if end is not None and end.final is not None:
        return end.final.attempt == status.attempt
    if pod.attempt != str(status.attempt):
        return False
    begun = status.attempt_start_time
    return end is None or end.at is None or begun is None or end.at >= begun


def moment(seconds: float, otherwise: datetime) -> datetime:
    """Unix seconds as a datetime; another one where a pod names a time that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return otherwise


def parse_time(text: str | None) -> datetime | None:
    """An API timestamp as an aware datetime."""
    return datetime.fromisoformat(text) if text else None


def view_pod(manifest: Mapping[str, Any]) -> PodView:
    """Reduce a pod, as the API server gives it, to what matters."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    container: Mapping[str, Any] = next(
        (
            c
            for c in status.get("containerStatuses") or []
            if c.get("name") == contract.WORKER_CONTAINER
        ),
        {},
    )
    termination = _termination(container)
    due = parse_time(metadata.get("deletionTimestamp"))
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        index=_index(labels.get(contract.LABEL_NODE_INDEX, "")),
        phase=_phase(status, termination),
        ready=conditions.get("Ready", {}).get("status") == "True",
        attempt=annotations.get(contract.ANNOTATION_ATTEMPT, ""),
        spec_hash=annotations.get(contract.ANNOTATION_SPEC_HASH, ""),
        deleting=due is not None,
        deletion_asked=due - grace if due is not None else None,
        deletion_due=due,
        node=spec.get("nodeName"),
        ip=status.get("podIP"),
        waiting=_waiting(conditions, container),
        reason=status.get("reason"),
        disruption=_disruption(conditions),
        termination=termination,
    )


def _phase(status: Mapping[str, Any], termination: Termination | None) -> str:
    """The pod's phase, or already how its worker ended.

    The kubelet moves the phase seconds later, when it has cleaned up; and a sidecar would hold it.
    """
    if termination is None:
        return str(status.get("phase", "Pending"))
    return "Succeeded" if termination.exit_code == 0 else "Failed"


def _index(label: str) -> int:
    return int(label) if label.isascii() and label.isdigit() else -1


def _waiting(conditions: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'Unscheduled')}: {scheduled.get('message', '')}"
    waiting = (container.get("state") or {}).get("waiting")
    if not waiting:
        return None
    reason, message = waiting.get("reason", "Waiting"), waiting.get("message")
    return f"{reason}: {message}" if message else str(reason)


def _disruption(conditions: Mapping[str, Any]) -> str | None:
    found = conditions.get("DisruptionTarget", {})
    return found.get("reason") or "Unknown" if found.get("status") == "True" else None


def _termination(container: Mapping[str, Any]) -> Termination | None:
    terminated = (container.get("state") or {}).get("terminated")
    if not terminated:
        return None
    try:
        final = AgentStatus.model_validate_json(terminated.get("message") or "")
    except ValidationError:
        final = None  # The container was killed before its agent could write.
    return Termination(
        exit_code=int(terminated.get("exitCode", 1)),
        reason=terminated.get("reason", ""),
        at=parse_time(terminated.get("finishedAt")),
        final=final,
    )
