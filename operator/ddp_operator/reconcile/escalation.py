"""Escalate from a restart in place to new pods while attempts end without progress.

A restart in place is the cheapest remedy: living pods fork new ranks. It does not help if a pod or
its Kubernetes node is the problem. So each attempt that ends without a new checkpoint counts as
stalled, unless a pod has kept a later state of the run in memory. The number of stalled attempts in
a row selects the remedy for the next one:

- 0: restart in place, and create only the missing pods.
- 1: recreate the pod with the root cause.
- 2: recreate all pods.
- 3: fail the job, because no stronger remedy is left.

A saved step resets the count. A free end, or an end without reports to the operator, leaves the
count unchanged. Each stalled attempt also gives strikes to the Kubernetes nodes of its faults. New
pods avoid a node with two strikes, if another one has room (`builders/affinity.py`).

A rank that hung, or whose weights were corrupted, gives its node a strike in any case. The pod of a
corrupted rank is recreated, because only a new pod can leave the node.
"""

from collections.abc import Iterable
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, DDPJobStatus, StrikeStatus
from ddp_operator.builders.affinity import valid_strikes
from ddp_operator.reconcile.fault import Fault
from ddp_operator.reconcile.hangs import HUNG
from ddp_operator.reconcile.terminations import CORRUPTED, NETWORK_FAILED, VOLUME_FAILED
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase

STALLED_LIMIT = 3
"""Number of stalled attempts in a row that fails the job, because no stronger remedy is left."""

_RUNS = frozenset({AgentPhase.STARTING, AgentPhase.TRAINING})
"""Phases of an agent whose ranks may still keep their state."""
_STRIKES = 32
"""Maximum number of Kubernetes nodes with strikes in the status."""


def reset_stalled_attempts(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with stalledAttempts reset to 0 once this attempt has saved a step."""
    if not status.stalled_attempts or not has_saved(status):
        return status
    return status.model_copy(update={"stalled_attempts": 0})


def count_stalled_attempt(
    world: World, status: DDPJobStatus, fault: Fault, faults: Iterable[Fault]
) -> DDPJobStatus:
    """Return the status with the current attempt counted as stalled if it saved no new step.

    A Kubernetes node on which a rank hung or was corrupted gets a strike in any case.

    Args:
        world: The observed state of the job.
        status: The job's status, with the newest checkpoint.
        fault: The root cause of the attempt's end.
        faults: All faults of the attempt. Their Kubernetes nodes get strikes.
    """
    status = reset_stalled_attempts(status)
    progressed = has_saved(status) or _has_kept(world, status)
    is_free = fault.free or progressed or not _reports_checkpoints(world.job, status)
    if is_free or not _receives_statuses(world, status):
        node = fault.failure.node if fault.failure.reason in {HUNG, CORRUPTED} else None
        return _with_strikes(status, {node}, world.now) if node else status
    count = status.stalled_attempts + 1
    if _is_outage(status, fault):
        # New pods mount the volume again, perhaps on other Kubernetes nodes. Until volume and
        # network recover no attempt can save a step, so only the budget limits how many try.
        count = min(count, STALLED_LIMIT - 1)
    status = status.model_copy(update={"stalled_attempts": count})
    blamed = [one for one in faults if not one.secondary and not one.free]
    nodes = {one.failure.node for one in blamed if one.failure.node is not None}
    return _with_strikes(status, nodes, world.now)


def _is_outage(status: DDPJobStatus, fault: Fault) -> bool:
    """Return whether the volume or the network failed and may recover for the next attempt.

    If the pods have never trained, a network policy may separate them. That does not recover.
    """
    reason = fault.failure.reason
    has_trained = status.last_checkpoint is not None
    return reason == VOLUME_FAILED or (reason == NETWORK_FAILED and has_trained)


def must_recreate(status: DDPJobStatus, pod: str) -> bool:
    """Return whether the current attempt must recreate the pod with a name.

    The result depends on the status alone, so a restarted operator continues the same escalation.
    The caller skips pods that already carry the number of the current attempt.
    """
    failure = status.last_failure
    if failure is None or failure.attempt != status.attempt - 1 or failure.cause is Cause.FREE:
        return False
    corrupted = failure.reason == CORRUPTED
    if status.stalled_attempts == 0 and not corrupted:
        return False
    return status.stalled_attempts > 1 or failure.pod == pod


def newest_step(status: DDPJobStatus) -> int | None:
    """Return the step of the newest known checkpoint, or None without one."""
    return status.last_checkpoint.step if status.last_checkpoint else None


def has_saved(status: DDPJobStatus) -> bool:
    """Return whether the current attempt has committed a checkpoint.

    A smaller step counts too, because the run may have resumed from an older checkpoint when the
    newest one was incomplete.
    """
    newest = newest_step(status)
    return newest is not None and newest != status.attempt_start_step


def _has_kept(world: World, status: DDPJobStatus) -> bool:
    """Return whether living pods keep in memory a later state than the attempt began with.

    Then the attempt has made progress, and new pods would lose that state.
    """
    start = status.resumed_from_step or 0
    found = [a for a in world.agent_statuses.values() if a.attempt == status.attempt]
    steps = {a.kept_part_step for a in found if a.kept_part_step is not None}
    return any(a.kept_step is not None and a.kept_step > start for a in found) or any(
        step > start and _may_be_whole(world, status, step) for step in steps
    )


def _may_be_whole(world: World, status: DDPJobStatus, step: int) -> bool:
    """Return whether the pods of all members may keep their parts of the state after an update.

    A pod whose ranks have not ended yet may still keep its part.
    """
    for index in world.members:
        pod = world.pod(index)
        agent = world.agent_status(pod) if pod is not None and not pod.terminal else None
        if agent is None or agent.attempt != status.attempt:
            return False
        if agent.kept_part_step != step and agent.phase not in _RUNS:
            return False
    return True


def _reports_checkpoints(job: DDPJob, status: DDPJobStatus) -> bool:
    """Return whether a missing checkpoint report means that there is no checkpoint.

    A `command` may save without reporting. A missing report of a command has a meaning only after
    it has reported a checkpoint.
    """
    reports = job.spec.task is not None or status.last_checkpoint is not None
    return job.spec.checkpoint is not None and reports


def _receives_statuses(world: World, status: DDPJobStatus) -> bool:
    """Return whether the operator would learn of a checkpoint of the current attempt.

    It learns of none if it cannot reach the agents, for example because of a NetworkPolicy.
    """
    first = world.first_pod
    final = first.termination.final if first is not None and first.termination else None
    known = [*world.agent_statuses.values(), *([final] if final else [])]
    if any(agent.attempt == status.attempt for agent in known):
        return True
    started, progress = status.attempt_start_time, status.progress
    # The last progress of the previous attempt can have the second in which this one starts.
    return bool(started and progress and progress.time and progress.time > started)


def _with_strikes(status: DDPJobStatus, nodes: set[str], now: datetime) -> DDPJobStatus:
    known = valid_strikes(status.strikes, now)
    counts = {strike.node: strike.count for strike in known}
    others = [strike for strike in known if strike.node not in nodes]
    time = now.replace(microsecond=0)
    new = [
        StrikeStatus(node=node, count=counts.get(node, 0) + 1, last_time=time)
        for node in sorted(nodes)
    ]
    return status.model_copy(update={"strikes": [*others, *new][-_STRIKES:]})
