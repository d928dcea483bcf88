"""Conditions: a function of what was observed and of the rest of the status."""

from datetime import datetime

from ddp_operator.api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    DDPJobStatus,
)
from ddp_operator.reconcile.world import PodView, World
from ddp_wire.contract import AgentPhase

MESSAGE_CHARACTERS = 2048
"""What a message is cut to: an API server's refusal can be of any length."""
_ON_ITS_WAY = {"ContainerCreating", "PodInitializing"}
"""What the kubelet says of each pod that starts as it should."""

_BLOCKED_REASONS = (
    ("exceeded quota", "QuotaExceeded"),
    ("is not this job's", "NameConflict"),
    (" cannot ", "NotPermitted"),
    ("failed calling webhook", "WebhookFailed"),
    ("denied the request", "AdmissionRejected"),
    (" is forbidden: ", "AdmissionRejected"),
)
"""What a sentence of refusal is known by, and its word; the first that fits."""


def set_condition(
    status: DDPJobStatus,
    kind: ConditionType,
    value: bool | None,
    reason: str,
    message: str,
    *,
    now: datetime,
    generation: int,
) -> DDPJobStatus:
    """The status with one condition set. The transition time moves only when the value does."""
    wanted = ConditionStatus.UNKNOWN if value is None else ConditionStatus(str(value))
    old = status.condition(kind)
    since = now.replace(microsecond=0)
    if old is not None and old.status is wanted:
        since = old.last_transition_time
    new = Condition(
        type=kind,
        status=wanted,
        reason=reason,
        message=message[:MESSAGE_CHARACTERS],
        last_transition_time=since,
        observed_generation=generation,
    )
    if old is None:
        return status.model_copy(update={"conditions": [*status.conditions, new]})
    conditions = [new if c.type == kind else c for c in status.conditions]
    return status.model_copy(update={"conditions": conditions})


class ConditionWriter:
    """Sets conditions of one job at one time."""

    def __init__(self, world: World, status: DDPJobStatus) -> None:
        self.world = world
        self.status = status

    def set(self, kind: ConditionType, value: bool | None, reason: str, message: str = "") -> None:
        """Set one condition; None means Unknown."""
        self.status = set_condition(
            self.status,
            kind,
            value,
            reason,
            message,
            now=self.world.now,
            generation=self.world.job.metadata.generation,
        )


def active_conditions(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Conditions of a job that is neither finished nor suspended."""
    out = ConditionWriter(world, status)
    ready = [p for p in world.pods if _trains(world, status, p)]
    wanted = world.job.spec.nodes
    _pods_ready(out, len(ready), wanted)
    if len(ready) == wanted:
        out.set(ConditionType.RENDEZVOUSED, True, "AllRanksJoined", f"in attempt {status.attempt}")
    elif not out.status.is_true(ConditionType.RENDEZVOUSED):
        out.set(ConditionType.RENDEZVOUSED, False, "WaitingForRanks", f"attempt {status.attempt}")
    if status.last_checkpoint is not None:
        step = status.last_checkpoint.step
        out.set(ConditionType.CHECKPOINTED, True, "Committed", f"at step {step}")
    reason, message = _summary(world, out.status)
    out.set(ConditionType.SUCCEEDED, None, reason, message)
    return out.status


def _trains(world: World, status: DDPJobStatus, pod: PodView) -> bool:
    """Whether the ranks of a pod train in the current attempt.

    The kubelet's word alone can be a second old, and so be about the attempt before: until all
    ranks have joined, the agent's own word counts too.
    """
    if not pod.ready or pod.deleting or pod.attempt != str(status.attempt):
        return False
    report = world.report(pod)
    if status.is_true(ConditionType.RENDEZVOUSED):
        return True
    if report is None:
        return status.attempt == 1
    return report.attempt == status.attempt and report.phase is AgentPhase.TRAINING


def _pods_ready(out: ConditionWriter, ready: int, wanted: int) -> None:
    blocked = out.world.blocked
    if ready == wanted:
        reason, message = "AllReady", f"{ready} of {wanted} pods train"
    elif blocked is not None:
        reason, message = _blocked_reason(blocked), blocked
    else:
        reason, message = "NotReady", f"{ready} of {wanted} pods train"
    out.set(ConditionType.PODS_READY, ready == wanted, reason, message)
    out.status = out.status.model_copy(update={"ready": f"{ready}/{wanted}"})


def _blocked_reason(sentence: str) -> str:
    """Why the API server did not do what it was asked for, in a word."""
    return next((word for part, word in _BLOCKED_REASONS if part in sentence), "NotServed")


def _summary(world: World, status: DDPJobStatus) -> tuple[str, str]:
    """Reason and message of an active job: the STATUS and MESSAGE that people read."""
    if world.blocked is not None:
        return "Pending", world.blocked
    if status.is_true(ConditionType.RENDEZVOUSED):
        return "Running", _running_message(world, status)
    failure = status.last_failure
    waiting = [p for p in world.pods if p.phase == "Pending"]
    if failure is not None and failure.attempt == status.attempt - 1:
        follows = f"attempt {status.attempt} follows because {failure.message}"
        stuck = (f"{p.name} waits: {p.waiting}" for p in waiting if is_stuck(p))
        return "Recovering", "; ".join([follows, *stuck][:2])
    if len(world.pods) < world.job.spec.nodes or waiting:
        said = next((f"{p.name} waits: {p.waiting}" for p in waiting if p.waiting), None)
        return "Pending", said or f"{len(world.pods)} of {world.job.spec.nodes} pods exist"
    late = [p.name for p in world.pods if not p.ready]
    return "Starting", f"ranks of {', '.join(late[:4])} are not in the process group yet"


def is_stuck(pod: PodView) -> bool:
    """Whether a pod waits for more than its own start, which needs no word."""
    return pod.waiting is not None and pod.waiting not in _ON_ITS_WAY


def _running_message(world: World, status: DDPJobStatus) -> str:
    ranks = world.job.spec.nodes * world.job.spec.ranks_per_node
    resumed = status.resumed_from_step
    start = f", resumed from step {resumed}" if resumed is not None else ""
    failure = status.last_failure
    after = f", after {failure.message}" if failure is not None else ""
    return f"{ranks} ranks train in attempt {status.attempt}{start}{after}"
