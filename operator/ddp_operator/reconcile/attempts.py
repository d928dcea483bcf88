"""When an attempt is over, why, and whether another one follows."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ddp_agent.contract import AgentPhase, AgentStatus, ExitCode, Failure
from ddp_operator.api.status import ConditionType, FailureStatus
from ddp_operator.builders import names
from ddp_operator.reconcile.world import PodView, World, moment

ROOT_CAUSE_PATIENCE = timedelta(seconds=2)
"""How long the fall of ranks whose peer had gone is no cause: the peer's word is on its way."""


@dataclass(frozen=True)
class Loss:
    """One finding that the current attempt is over."""

    failure: FailureStatus
    secondary: bool = False
    """The cause is elsewhere."""
    permanent: bool = False
    """No attempt can succeed."""
    free: bool = False
    """Costs no restart."""


def find_losses(world: World) -> list[Loss]:
    """All findings that the current attempt is over; empty while it may go on."""
    formed = world.job.status.is_true(ConditionType.RENDEZVOUSED)
    found = []
    for index in range(world.job.spec.nodes):
        loss = _pod_loss(world, index, formed=formed)
        if loss is not None:
            found.append(loss)
    return found


def root_cause(losses: list[Loss], now: datetime) -> Loss | None:
    """The loss to act on, or None while its cause may still be on its way.

    Raises:
        ValueError: There are no losses.
    """
    if not losses:
        raise ValueError("no losses, no cause")
    primary = [loss for loss in losses if not loss.secondary]
    if primary:
        return min(primary, key=lambda loss: (not loss.permanent, loss.failure.time))
    first = min(losses, key=lambda loss: loss.failure.time)
    waiting = timedelta(0) <= now - first.failure.time < ROOT_CAUSE_PATIENCE
    return None if waiting else first


def _pod_loss(world: World, index: int, *, formed: bool) -> Loss | None:
    attempt = world.job.status.attempt
    pod = world.pod(index)
    if pod is None or (pod.deleting and not pod.terminal):
        # Before all ranks were in one process group a missing pod is created, and the rest waits
        # for it. After that its ranks are gone for good, and with them the attempt.
        return _lost_pod(world, index, pod) if formed else None
    if (pod.ended_attempt if pod.terminal else pod.attempt) != str(attempt):
        return None  # It has not been told of this attempt, or ended before it could run it.
    report = world.report(pod)
    if report is not None and report.attempt == attempt:
        if report.phase is AgentPhase.FAILED:
            return _rank_loss(world, pod, report)
        if report.phase is AgentPhase.PREEMPTED:
            return Loss(_failure(world, pod, "Preempted", "stopped on request"), free=True)
    if pod.phase == "Failed":
        return _dead_pod(world, pod)
    return None


def _rank_loss(world: World, pod: PodView, report: AgentStatus) -> Loss:
    cause = report.failure or Failure(attempt=report.attempt, at=report.since, message="no word")
    permanent = cause.exit_code == ExitCode.BAD_INPUT
    oom = pod.termination is not None and pod.termination.reason == "OOMKilled"
    reason = "OOMKilled" if oom else "BadInput" if permanent else "RankFailed"
    who = f"rank {cause.rank} on {pod.name}" if cause.rank is not None else pod.name
    how = f"was ended by {cause.signal}" if cause.signal else "failed"
    text = f": {cause.message}" if cause.message else f" with exit code {cause.exit_code}"
    sentence = f"{who} {how}" + ("" if cause.signal and not cause.message else text)
    failure = _failure(world, pod, reason, sentence).model_copy(
        update={
            "rank": cause.rank,
            "exit_code": cause.exit_code,
            "signal": cause.signal and cause.signal[:64],
            "traceback": cause.traceback or None,
            "time": moment(cause.at, world.now),
        }
    )
    return Loss(failure, secondary=cause.secondary, permanent=permanent)


def _dead_pod(world: World, pod: PodView) -> Loss:
    end = pod.termination
    if end is None:
        reason = pod.reason or "PodFailed"
        return Loss(_failure(world, pod, reason, f"{pod.name} failed: {reason}"))
    if end.exit_code == ExitCode.PREEMPTED:
        return Loss(_failure(world, pod, "Preempted", f"{pod.name} was stopped"), free=True)
    reason = "OOMKilled" if end.reason == "OOMKilled" else "PodFailed"
    how = "ran out of memory" if reason == "OOMKilled" else f"ended with exit code {end.exit_code}"
    failure = _failure(world, pod, reason, f"{pod.name} {how}")
    return Loss(
        failure.model_copy(update={"exit_code": end.exit_code, "time": end.at or world.now}),
        permanent=end.exit_code == ExitCode.BAD_INPUT,
    )


def _lost_pod(world: World, index: int, pod: PodView | None) -> Loss:
    name = names.pod_name(world.job, index)
    how = "was deleted" if pod is None else "is being deleted"
    return Loss(
        FailureStatus(
            attempt=world.job.status.attempt,
            reason="PodLost",
            pod=name,
            node=pod.node if pod else None,
            message=f"{name} {how}",
            time=world.now,
        )
    )


def _failure(world: World, pod: PodView, reason: str, message: str) -> FailureStatus:
    return FailureStatus(
        attempt=world.job.status.attempt,
        reason=reason,
        pod=pod.name,
        node=pod.node,
        message=message,
        time=world.now,
    )
