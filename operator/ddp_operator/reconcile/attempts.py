"""When an attempt is over, why, and whose fault it was."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ddp_operator.api.status import Cause, ConditionType, FailureStatus
from ddp_operator.builders import names
from ddp_operator.reconcile.world import PodView, Termination, World, ended_in, moment
from ddp_wire.contract import AgentPhase, AgentStatus, ExitCode, Failure

_KILLED = 137
"""Exit code of a container that SIGKILL ended: no program chooses it."""

_STOPPED = "Preempted"
_REASON_CHARACTERS = 1024
"""What a reason is cut to: any controller may write one of any length."""

_DISRUPTIONS = {
    "PreemptionByScheduler": (Cause.FREE, "made room for a pod of higher priority"),
    "EvictionByEvictionAPI": (Cause.FREE, "was evicted, as when its node is drained"),
    "DeletionByTaintManager": (Cause.INFRASTRUCTURE, "was deleted for a taint of its node"),
    "DeletionByPodGC": (Cause.INFRASTRUCTURE, "was deleted because its node is gone"),
    "TerminationByKubelet": (Cause.INFRASTRUCTURE, "was ended by the kubelet of its node"),
}
"""Reasons of the condition DisruptionTarget: whose fault each is, and a sentence's predicate."""

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

    @property
    def free(self) -> bool:
        """Whether it costs no budget."""
        return self.failure.cause is Cause.FREE


def find_losses(world: World) -> list[Loss]:
    """All findings that the current attempt is over; empty while it may go on."""
    formed = world.job.status.is_true(ConditionType.RENDEZVOUSED)
    found = []
    for index in range(world.job.spec.nodes):
        loss = _pod_loss(world, index, formed=formed)
        if loss is not None:
            found.append(loss)
    return found


def root_cause(losses: list[Loss], world: World) -> Loss | None:
    """The loss to act on, or None while its cause may still be on its way.

    Raises:
        ValueError: There are no losses.
    """
    if not losses:
        raise ValueError("no losses, no cause")
    primary = [loss for loss in losses if not loss.secondary]
    if primary:
        found = min(primary, key=_rank_of_cause)
        return _who_was_asked(found, world) if found.failure.reason == _STOPPED else found
    first = min(losses, key=lambda loss: loss.failure.time)
    if _is_new(first.failure.time, world):
        return None
    silent = _silent_pods(world)
    return _lost_peer(first, f"{silent[0]} does not answer", silent[0]) if silent else first


def _is_new(time: datetime, world: World) -> bool:
    return timedelta(0) <= world.now - time < ROOT_CAUSE_PATIENCE


def _who_was_asked(stop: Loss, world: World) -> Loss | None:
    """The loss behind ranks that saved and stopped in a pod; None while it cannot be told.

    Ranks stop everywhere when one pod is told to go. Where that happened before it was seen that
    all of them had met, that pod was taken for one that is late, and may be there anew by now. It
    is told by its own word, and not by the clocks of two machines: it has not joined.
    """
    speaker = next((pod for pod in world.pods if pod.name == stop.failure.pod), None)
    word = world.report(speaker) if speaker is not None else None
    if word is None or not _joined(word):
        return stop
    for index in range(world.job.spec.nodes):
        pod = world.pod(index)
        if pod is None or (pod.deleting and not pod.terminal):
            return _lost_pod(world, index, pod)
        if pod.terminal or _takes_part(pod, world):
            continue
        if _is_new(moment(word.since, world.now), world):
            return None
        # One that runs and was not heard yet may have stopped like the others.
        if pod.phase != "Running" or world.report(pod) is not None:
            return _lost_peer(stop, f"{pod.name} has no part in it any more", pod.name)
    return stop


def _takes_part(pod: PodView, world: World) -> bool:
    word = world.report(pod)
    return word is not None and word.attempt == world.job.status.attempt and _joined(word)


def _joined(word: AgentStatus) -> bool:
    return word.timeline is not None and word.timeline.joined is not None


def _silent_pods(world: World) -> list[str]:
    """Pods of which nobody says how the attempt fares there."""
    found = []
    for index in range(world.job.spec.nodes):
        pod = world.pod(index)
        if pod is None or (world.report(pod) is None and not pod.terminal):
            found.append(names.pod_name(world.job, index))
    return found


def _lost_peer(first: Loss, why: str, pod: str) -> Loss:
    """Ranks fell because a peer had gone, and there is a pod that does not answer: that is why.

    Its node has died, or its agent has and the kubelet does not tell; or the pod is another one.
    """
    message = f"{why}, and with it fell others: {first.failure.message}"
    update = {
        "cause": Cause.INFRASTRUCTURE,
        "reason": "PeerLost",
        "pod": pod,
        "node": None,
        "message": message,
    }
    return Loss(first.failure.model_copy(update=update))


def _rank_of_cause(loss: Loss) -> tuple[bool, bool, datetime]:
    # Ranks stop on request everywhere when one pod is told to go: that pod says more about why.
    return not loss.permanent, loss.failure.reason == _STOPPED, loss.failure.time


def _pod_loss(world: World, index: int, *, formed: bool) -> Loss | None:
    attempt = world.job.status.attempt
    pod = world.pod(index)
    if pod is None or (pod.deleting and not pod.terminal):
        # Before all ranks were in one process group a missing pod is created, and the rest waits
        # for it. After that its ranks are gone for good, and with them the attempt.
        return _lost_pod(world, index, pod) if formed else None
    mine = ended_in(pod, world.job.status) if pod.terminal else pod.attempt == str(attempt)
    if not mine:
        return None  # It has not been told of this attempt, or ended before it could run it.
    loss = _ended_pod(world, pod)
    if loss is None or loss.permanent or pod.disruption is None:
        return loss
    # Its ranks fell only because the pod was told to go.
    return Loss(_disrupted(world, pod, pod.disruption, loss.failure.time))


def _ended_pod(world: World, pod: PodView) -> Loss | None:
    """How the attempt ended in a pod, by its own word or by its container's."""
    report = world.report(pod)
    if report is not None and report.attempt == world.job.status.attempt:
        if report.phase is AgentPhase.FAILED:
            return _rank_loss(world, pod, report)
        if report.phase is AgentPhase.PREEMPTED:
            message = f"{pod.name} was stopped on request"
            return Loss(_failure(world, pod, Cause.FREE, _STOPPED, message))
    if pod.phase == "Failed":
        return _dead_pod(world, pod)
    return None


def _rank_loss(world: World, pod: PodView, report: AgentStatus) -> Loss:
    cause = report.failure or Failure(attempt=report.attempt, at=report.since, message="no word")
    permanent = cause.exit_code == ExitCode.BAD_INPUT
    oom = cause.out_of_memory or (
        pod.termination is not None and pod.termination.reason == "OOMKilled"
    )
    reason = "OOMKilled" if oom else "BadInput" if permanent else "RankFailed"
    who = f"rank {cause.rank} on {pod.name}" if cause.rank is not None else pod.name
    how = f"was ended by {cause.signal}" if cause.signal else "failed"
    text = f": {cause.message}" if cause.message else f" with exit code {cause.exit_code}"
    sentence = f"{who} {how}" + ("" if cause.signal and not cause.message else text)
    if cause.out_of_memory:
        sentence = f"{who} ran into the memory limit of its pod"
    failure = _failure(world, pod, Cause.APPLICATION, reason, sentence).model_copy(
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
    """A pod that failed without a word of its agent about this attempt."""
    end = pod.termination
    if end is None:
        # It failed as a whole: its node was lost or shut down, or the kubelet evicted it.
        reason = pod.reason or "PodFailed"
        message = f"{pod.name} failed: {reason}"
        return Loss(_failure(world, pod, Cause.INFRASTRUCTURE, reason, message))
    if end.exit_code == ExitCode.PREEMPTED:
        message = f"{pod.name} was stopped on request"
        return Loss(_failure(world, pod, Cause.FREE, _STOPPED, message))
    cause, reason, how = _death(pod, end)
    failure = _failure(world, pod, cause, reason, f"{pod.name} {how}")
    return Loss(
        failure.model_copy(update={"exit_code": end.exit_code, "time": end.at or world.now}),
        permanent=end.exit_code == ExitCode.BAD_INPUT,
    )


def _death(pod: PodView, end: Termination) -> tuple[Cause, str, str]:
    """Cause, reason and a sentence's predicate for a container that ended without a word."""
    if end.reason == "OOMKilled":
        return Cause.APPLICATION, "OOMKilled", "ran out of memory"
    if pod.reason is not None:
        return Cause.INFRASTRUCTURE, pod.reason, f"failed: {pod.reason}"
    # Nothing in the container kills its agent, which is its first process.
    outside = end.exit_code == _KILLED and end.final is None
    cause = Cause.INFRASTRUCTURE if outside else Cause.APPLICATION
    return cause, "PodFailed", f"ended with exit code {end.exit_code}"


def _lost_pod(world: World, index: int, pod: PodView | None) -> Loss:
    if pod is not None and pod.disruption is not None:
        return Loss(_disrupted(world, pod, pod.disruption, world.now))
    name = names.pod_name(world.job, index)
    how = "was deleted" if pod is None else "is being deleted"
    return Loss(
        FailureStatus(
            attempt=world.job.status.attempt,
            reason="PodLost",
            cause=Cause.INFRASTRUCTURE,
            pod=name,
            node=pod.node if pod else None,
            message=f"{name} {how}",
            time=world.now,
        )
    )


def _disrupted(world: World, pod: PodView, reason: str, time: datetime) -> FailureStatus:
    # Reasons that other controllers make up are about the place too, and no wish of the user's.
    otherwise = (Cause.INFRASTRUCTURE, f"was told to go: {reason}")
    cause, how = _DISRUPTIONS.get(reason, otherwise)
    failure = _failure(world, pod, cause, reason, f"{pod.name} {how}")
    return failure.model_copy(update={"time": time})


def _failure(world: World, pod: PodView, cause: Cause, reason: str, message: str) -> FailureStatus:
    return FailureStatus(
        attempt=world.job.status.attempt,
        reason=reason[:_REASON_CHARACTERS],
        cause=cause,
        pod=pod.name,
        node=pod.node,
        message=message,
        time=world.now,
    )
