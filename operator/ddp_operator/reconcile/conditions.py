"""Compute the conditions of a job from its observed state and the rest of its status."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    DDPJobStatus,
    StragglerStatus,
)
from ddp_operator.reconcile import claims, exits, gangs, outside_gang
from ddp_operator.reconcile.containers import NORMAL_START
from ddp_operator.reconcile.held_pods import held_sentence
from ddp_operator.reconcile.pod_view import SCHEDULING_GATED, PodView
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase

MESSAGE_CHARACTERS = 2048
"""Maximum length of a message, in characters, because the API server's errors have no limit."""
OLD_READINESS_LIMIT = timedelta(seconds=10)
"""Age of an attempt from which a pod's readiness describes this attempt, and not the previous one.
The kubelet delivers the new attempt order within about 2 s, and probes every second."""
INVALID = "Invalid"
"""Reason of the condition Succeeded for a job whose spec cannot run."""
RUNNING = "Running"
"""Reason of the condition Succeeded while all ranks train."""
SUSPENDED = "Suspended"
"""Reason of the condition Succeeded while spec.suspend is true."""
QUOTA_EXCEEDED = "QuotaExceeded"
CHECKPOINT_PATH_IN_USE = "CheckpointPathInUse"
QUEUED = (QUOTA_EXCEEDED, SCHEDULING_GATED, "Unschedulable")
"""Reasons of the condition PodsReady for a job that waits for room, which is a normal state."""
_BLOCKED_REASONS = (
    ("exceeded quota", QUOTA_EXCEEDED),
    ("strict decoding error", "InvalidPod"),
    (" is invalid: ", "InvalidPod"),
    ("is not this job's", "NameConflict"),
    (" cannot ", "NotPermitted"),
    ("failed calling webhook", "WebhookFailed"),
    ("denied the request", "AdmissionRejected"),
    (" is forbidden: ", "AdmissionRejected"),
)
"""Condition reasons, by a part of the API server's error message. The first match applies."""


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
    """Return the status with one condition set.

    The transition time changes only when the value does.
    """
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
    """Writer of conditions for one job at one point in time."""

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

    def set_waiting_for_ranks(self) -> None:
        """Set the condition Rendezvoused to False while some ranks have not joined."""
        message = f"attempt {self.status.attempt} waits until all its ranks have joined"
        self.set(ConditionType.RENDEZVOUSED, False, "WaitingForRanks", message)


def active_conditions(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with the conditions of a job that is neither finished nor suspended."""
    out = ConditionWriter(world, status)
    joined = status.is_true(ConditionType.RENDEZVOUSED) or _first_trains(world, status)
    members = frozenset(world.members)
    mine = (pod for pod in world.pods if pod.index in members)
    ready = [p for p in mine if _is_training(world, status, p, joined=joined)]
    _set_pods_ready(out, len(ready), world.job.nodes)
    if len(ready) == len(members):
        message = f"all ranks of attempt {status.attempt} have joined"
        out.set(ConditionType.RENDEZVOUSED, True, "AllRanksJoined", message)
    elif not out.status.is_true(ConditionType.RENDEZVOUSED):
        out.set_waiting_for_ranks()
    if status.last_checkpoint is not None:
        message = f"the newest checkpoint is at step {status.last_checkpoint.step}"
        out.set(ConditionType.CHECKPOINTED, True, "Committed", message)
    if (gang := gangs.report(world)) is not None:
        out.set(ConditionType.GANG_SCHEDULED, gang.placed, gang.reason, gang.message)
    if (claim := claims.report(world)) is not None:
        out.set(ConditionType.CLAIM_BOUND, claim.bound, claim.reason, claim.message)
    reason, message = _summary(world, out.status)
    out.set(ConditionType.SUCCEEDED, None, reason, message)
    return out.status


def _first_trains(world: World, status: DDPJobStatus) -> bool:
    """Return whether the first member's agent reports that its ranks train in the current attempt.

    No rank can pass torchrun's rendezvous or join the process group without all other ranks. So the
    status of one agent is enough, and the operator need not read thousands of them.
    """
    pod = world.first_pod
    agent = world.agent_status(pod) if pod is not None else None
    if agent is None or agent.attempt != status.attempt:
        return False
    return agent.phase is AgentPhase.TRAINING


def _is_training(world: World, status: DDPJobStatus, pod: PodView, *, joined: bool) -> bool:
    """Return whether the ranks of a pod train in the current attempt.

    The kubelet's readiness can be 1 s old and thus describe the previous attempt. Until all ranks
    have joined, the agent must report the current attempt too. An operator that cannot reach the
    agent relies on the readiness if the pod was created for the attempt, or if the readiness lasts
    longer than the start of the attempt.

    Args:
        world: The observed state.
        status: The status so far.
        pod: A pod of the job.
        joined: Whether all ranks of the attempt have joined.
    """
    if not pod.ready or pod.deleting or pod.attempt != str(status.attempt):
        return False
    if joined:
        return True
    agent = world.agent_status(pod)
    if agent is None:
        return pod.first_attempt == str(status.attempt) or _outlasts_start(world, status)
    return agent.attempt == status.attempt and agent.phase is AgentPhase.TRAINING


def _outlasts_start(world: World, status: DDPJobStatus) -> bool:
    """Return whether the attempt is so old that a readiness must describe this attempt."""
    started = status.attempt_start_time
    if status.attempt == 1 or started is None:
        return status.attempt == 1
    # A start in the future means that the clock was set back since.
    return not timedelta(0) <= world.now - started < OLD_READINESS_LIMIT


def _set_pods_ready(out: ConditionWriter, ready: int, wanted: int) -> None:
    blocked = out.world.blocked
    if ready == wanted:
        reason, message = "AllReady", f"{ready} of {wanted} pods are training"
    elif blocked is not None:
        reason, message = blocked_reason(blocked), blocked
    else:
        reason = _waiting_reason(out.world.pods) or "NotReady"
        message = f"{ready} of {wanted} pods are training"
    out.set(ConditionType.PODS_READY, ready == wanted, reason, message)
    out.status = out.status.model_copy(update={"ready": f"{ready}/{wanted}"})


def _waiting_reason(pods: Sequence[PodView]) -> str | None:
    """Return the reason why pods wait: the kubelet's reason, or else the scheduler's.

    The reason is Unschedulable or SchedulingGated only if all pods of the job wait for room or for
    a queue.
    """
    stuck = (p.waiting for p in pods if p.phase == "Pending" and is_stuck(p))
    reasons = {text.partition(":")[0] for text in stuck if text}
    named = sorted(reason for reason in reasons if reason.isalnum())
    return next((reason for reason in named if reason not in QUEUED), named[0] if named else None)


def blocked_reason(error: str) -> str:
    """Return the condition reason that matches an API server error."""
    return next((reason for part, reason in _BLOCKED_REASONS if part in error), "NotServed")


def start_over_warning(job: DDPJob, status: DDPJobStatus) -> str | None:
    """Return a warning that a `command` may repeat an earlier attempt's training, or None.

    A command may save without reporting it, so the operator only warns.
    """
    if job.spec.command is None or status.attempt <= 1 or status.last_checkpoint is not None:
        return None
    if status.goodput is None or not status.goodput.training_milliseconds:
        return None
    return "the command has reported no checkpoint: it may start from the beginning"


def _summary(world: World, status: DDPJobStatus) -> tuple[str, str]:
    """Return the values of the STATUS and MESSAGE columns for an active job."""
    joined = status.is_true(ConditionType.RENDEZVOUSED)
    if world.blocked is not None and not (joined and world.job.spec.may_leave_nodes_out):
        # Only its author can decide whether a job may use the claim of another user.
        return INVALID if claims.is_name_taken(world.blocked) else "Pending", world.blocked
    if joined:
        refused = f"; {world.blocked}" if world.blocked else ""  # The pod of another node.
        return RUNNING, _running_message(world, status) + refused
    failure = status.last_failure
    waiting = [p for p in world.pods if p.phase == "Pending"]
    held = held_sentence(world)
    if failure is not None and failure.attempt == status.attempt - 1:
        cause = f"attempt {status.attempt} starts because {failure.message}"
        stuck = next((_why_waiting(p, status) for p in waiting if is_stuck(p)), None)
        warning = start_over_warning(world.job, status)
        waits = gangs.waiting_sentence(status, stuck, missing=False) or stuck
        why = [*([waits] if waits else []), *_obstacles(world, status)]
        parts = [*([held] if held else []), cause, *why][:2] + ([warning] if warning else [])
        return "Recovering", "; ".join(parts)
    if held is not None:
        return "Pending", held
    missing = any(world.pod(index) is None for index in outside_gang.expected(world))
    if missing or waiting:
        # A pod that starts normally tells nothing while other pods do not exist yet.
        telling = (p for p in waiting if p.waiting and (is_stuck(p) or not missing))
        first = next((_why_waiting(p, status) for p in telling), None)
        count = f"{len(world.pods):,} of {world.job.pods:,} pods exist"
        waits = gangs.waiting_sentence(status, first, missing=missing) or first or count
        claim = claims.why_it_waits(world)
        return "Pending", f"{waits}; {claim}" if claim else waits
    late = [p.name for p in world.pods if not p.ready]
    message = f"the ranks of {', '.join(late[:4])} have not joined yet"
    return "Starting", "; ".join([message, *_obstacles(world, status)][:2])


def _obstacles(world: World, status: DDPJobStatus) -> list[str]:
    """Return the reasons why pods cannot start. Pods that cannot reach node 0 come first."""
    found = []
    for pod in reversed(world.pods):
        agent = world.agent_status(pod)
        if agent is not None and agent.attempt == status.attempt and agent.waits_for:
            found.append(f"{pod.name} {agent.waits_for}")
    return found


def _why_waiting(pod: PodView, status: DDPJobStatus) -> str:
    """Return a sentence about a pod that waits, with the GPU product that the operator chose."""
    chosen = status.pods.gpu_product if status.pods is not None else None
    product = f"; all pods of the job require {chosen}, see spec.gpuProduct" if chosen else ""
    return f"{pod.name} waits: {pod.waiting}{product}"


def is_stuck(pod: PodView) -> bool:
    """Return whether a pod waits for anything but its normal start."""
    return pod.waiting is not None and pod.waiting.partition(":")[0] not in NORMAL_START


def _running_message(world: World, status: DDPJobStatus) -> str:
    ranks = world.ranks
    first = world.first_pod
    agent = world.agent_status(first) if first is not None else None
    if agent is not None and agent.attempt == status.attempt and exits.all_done(agent):
        return f"all {ranks} ranks have done their work in attempt {status.attempt}, and exit"
    warning = start_over_warning(world.job, status)
    resumed = status.resumed_from_step
    start = f", resumed from step {resumed}" if resumed is not None else ""
    slow = f"; {sentence_about(status.straggler)}" if status.straggler is not None else ""
    suspect = status.suspect
    if suspect is not None:
        slow = f"; no update has ended since {suspect.since:%H:%M:%S} UTC: {suspect.message}"
    troubles = (f"; {pod.name}: {pod.beside}" for pod in world.pods if pod.beside)
    beside = next(troubles, "") + (f"; {warning}" if warning else "")
    return f"{ranks} ranks are training in attempt {status.attempt}{start}{slow}{beside}"


def sentence_about(straggler: StragglerStatus) -> str:
    """Return a message about a slow rank."""
    place = f"{straggler.pod} ({straggler.node})" if straggler.node else straggler.pod
    return (
        f"rank {straggler.rank} on {place} needs {straggler.ratio} times as long as the others for"
        f" its {straggler.part}, and all other ranks wait for it"
    )
