"""Find the faults that prevent the current attempt from continuing.

The module judges each node of the job on its own, so that one event may cause several faults. The
agent's status decides first, then the exit code of the container, then the state of the pod. A
disruption that Kubernetes announced for the pod overrides them, because it explains why the ranks
failed. A hang of the whole job is considered only if no node has a fault.

A missing pod is a fault only after torchrun has started on all nodes. Before that, the operator
creates the pod, and all other pods wait for it at the start barrier. `root_cause` selects the fault
to act on.
"""

import math
import statistics
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ddp_operator.api.status import Cause, FailureStatus
from ddp_operator.reconcile import hangs
from ddp_operator.reconcile.abandoned import UNREACHABLE_REASON, is_abandoned, is_unreachable
from ddp_operator.reconcile.containers import InitFailure
from ddp_operator.reconcile.fault import STOPPED, Fault
from ddp_operator.reconcile.pod_view import EVICTED_BY_VOLCANO, STOPPED_BY_QUEUE, PodView
from ddp_operator.reconcile.terminations import (
    CORRUPTED,
    NETWORK_FAILED,
    NOT_STARTED,
    REPLICAS_DIFFER,
    VOLUME_FAILED,
    classify,
    why_pod_failed,
)
from ddp_operator.reconcile.world import World
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentPhase, AgentStatus, Failure
from ddp_wire.replica_errors import NO_MAJORITY

_REASONS: dict[int | None, str] = {
    ExitCode.BAD_INPUT: "BadInput",
    ExitCode.VOLUME_FAILED: VOLUME_FAILED,
    ExitCode.CORRUPTED: CORRUPTED,
    ExitCode.REPLICAS_DIFFER: REPLICAS_DIFFER,
    ExitCode.CORRUPTION_STOP: REPLICAS_DIFFER,
}
"""Reasons of failures, by the exit codes of ranks that have a special meaning."""
_PERMANENT = frozenset({ExitCode.BAD_INPUT, ExitCode.CORRUPTION_STOP})
"""Exit codes after which no other attempt starts."""
_OF_INFRASTRUCTURE = frozenset({VOLUME_FAILED, NETWORK_FAILED, CORRUPTED})
"""Reasons of failures of ranks for which the program is not at fault."""
_REASON_CHARACTERS = 1024
"""Maximum length of a reason, in characters, because other controllers set no limit."""

_COLLECTED = "DeletionByPodGC"
"""Disruption reason of pods that Kubernetes deletes because their node no longer exists."""
_DISRUPTIONS = {
    "PreemptionByScheduler": (Cause.FREE, "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": (Cause.FREE, "was evicted, for example by a node drain"),
    STOPPED_BY_QUEUE: (Cause.FREE, "was stopped by its queue"),
    EVICTED_BY_VOLCANO: (Cause.FREE, "was evicted by Volcano for another job or queue"),
    "DeletionByTaintManager": (
        Cause.INFRASTRUCTURE,
        "was deleted because of a taint on its Kubernetes node",
    ),
    _COLLECTED: (
        Cause.INFRASTRUCTURE,
        "was deleted because its Kubernetes node no longer exists",
    ),
    "TerminationByKubelet": (
        Cause.INFRASTRUCTURE,
        "was terminated by the kubelet of its Kubernetes node",
    ),
}
"""Cause, and predicate of the message, for each disruption reason of a controller."""

_SYNCHRONISED_SECONDS = 2.0
"""Maximum clock difference in seconds at which two clocks count as synchronised. The difference
between the starts of two agents may be as large, without any difference between their clocks."""


def find_faults(world: World) -> list[Fault]:
    """Return all faults of the current attempt; an empty list if the attempt can continue."""
    found = []
    offsets = _clock_offsets(world)
    for index in world.members:
        fault = _pod_fault(world, index, started=world.has_started)
        if fault is not None:
            offset = offsets.get(world.pod_name(index), 0.0)
            found.append(replace(fault, at=fault.at - offset))
    if not found and hangs.has_hung(world):
        found.append(Fault(hangs.failure(world)))
    return found


def _clock_offsets(world: World) -> dict[str, float]:
    """Return how many seconds the clock of each pod's node is ahead of most other nodes.

    The start barrier opens for all agents at once, so that the times at which they start torchrun
    show the difference between their clocks.
    """
    starts: dict[str, float] = {}
    for pod in world.pods:
        agent = world.agent_status(pod)
        if agent is not None and agent.attempt == world.job.status.attempt and agent.timeline:
            launched = agent.timeline.launched
            if launched is not None:
                starts[pod.name] = launched
    if not starts:
        return {}
    usual = statistics.median_low(starts.values())
    offsets = {name: start - usual for name, start in starts.items()}
    return {name: o for name, o in offsets.items() if abs(o) > _SYNCHRONISED_SECONDS}


def _pod_fault(world: World, index: int, *, started: bool) -> Fault | None:
    attempt = world.job.status.attempt
    pod = world.pod(index)
    if pod is None and index in world.succeeded:
        return None
    if pod is None or _is_leaving(world, pod, started=started):
        if pod is not None and pod.attempt == str(attempt) and is_abandoned(world, pod):
            return _lost_pod(world, index, pod)
        # Before the start, the operator creates a missing pod and the others wait for it.
        # Afterwards its ranks cannot join the others, so the attempt cannot go on.
        return _lost_pod(world, index, pod) if started else None
    mine = world.ended_here(pod) if pod.terminal else pod.attempt == str(attempt)
    if not mine:
        return None  # The pod has no order for this attempt yet, or ended before it ran it.
    fault = ended_pod(world, pod)
    if fault is None or fault.permanent or pod.disruption is None:
        return fault
    # The disruption of the pod explains the failure of its ranks.
    return Fault(_disrupted(world, pod, pod.disruption, fault.failure.time), fault.at)


def _is_leaving(world: World, pod: PodView, *, started: bool) -> bool:
    """Return whether Kubernetes removes a pod, so that its exit code has no meaning.

    Before the start of the attempt, the exit code counts only if the agent reports a failure.
    Kubernetes marks the pods of a removed node as Failed just before it deletes them.
    """
    if pod.deleting and not pod.terminal:
        return True
    removed = pod.phase == "Failed" and (pod.deleting or pod.disruption == _COLLECTED)
    return removed and not started and not _has_failed(world, pod)


def _has_failed(world: World, pod: PodView) -> bool:
    agent = world.agent_status(pod)
    attempt = world.job.status.attempt
    return agent is not None and agent.attempt == attempt and agent.phase is AgentPhase.FAILED


def ended_pod(world: World, pod: PodView) -> Fault | None:
    """Return the fault that the pod's agent reports, or else the fault that its container shows."""
    agent = world.agent_status(pod)
    if agent is not None and agent.attempt == world.job.status.attempt:
        if agent.phase is AgentPhase.FAILED:
            return _rank_fault(world, pod, agent)
        if agent.phase is AgentPhase.PREEMPTED:
            message = f"{pod.name} was stopped on request"
            return Fault(_failure(world, pod, Cause.FREE, STOPPED, message))
    if pod.phase == "Failed":
        return _dead_pod(world, pod)
    return None


def _rank_fault(world: World, pod: PodView, agent: AgentStatus) -> Fault:
    cause = agent.failure or Failure(
        attempt=agent.attempt, at=agent.since, message="the agent reported no cause"
    )
    permanent = cause.exit_code in _PERMANENT
    oom = cause.out_of_memory or (
        pod.termination is not None and pod.termination.reason == "OOMKilled"
    )
    usual = NETWORK_FAILED if cause.network else _REASONS.get(cause.exit_code, "RankFailed")
    reason = "OOMKilled" if oom else usual
    who = f"rank {cause.rank} on {pod.name}" if cause.rank is not None else pod.name
    how = f"was killed by {cause.signal}" if cause.signal else "failed"
    text = f": {cause.message}" if cause.message else f" with exit code {cause.exit_code}"
    sentence = f"{who} {how}" + ("" if cause.signal and not cause.message else text)
    if cause.out_of_memory:
        sentence = _out_of_memory(who, cause, world)
    if reason == REPLICAS_DIFFER and cause.message:
        sentence = cause.message  # It concerns all ranks, or names the rank itself.
    kind = Cause.INFRASTRUCTURE if reason in _OF_INFRASTRUCTURE else Cause.APPLICATION
    update: dict[str, Any] = {
        "rank": cause.rank,
        "exit_code": cause.exit_code,
        "signal": cause.signal and cause.signal[:64],
        "traceback": cause.traceback or None,
        "time": datetime.fromtimestamp(cause.at, UTC),
    }
    if cause.message.endswith(NO_MAJORITY):
        update |= {"rank": None, "pod": None, "node": None}  # Any rank may be at fault.
    failure = _failure(world, pod, kind, reason, sentence).model_copy(update=update)
    return Fault(failure, at=cause.at, secondary=cause.secondary, permanent=permanent)


def _out_of_memory(who: str, cause: Failure, world: World) -> str:
    """Return a message about a rank that ran out of memory, and about the origin of the limit."""
    if not cause.message:
        return f"{who} exceeded the memory limit of its pod"
    resources = world.job.spec.resources
    limits = (resources and resources.limits) or {}
    origin = "" if "memory" in limits else "; spec.resources sets none, so it may be a LimitRange's"
    return f"{who} ran out of memory: {cause.message}{origin}"


def _dead_pod(world: World, pod: PodView) -> Fault:
    """Return the fault of a failed pod without an agent status of this attempt."""
    end = pod.termination
    if end is None:
        if pod.init_failure is not None and pod.reason is None:
            return _failed_init_container(world, pod, pod.init_failure)
        # The pod failed as a whole: its Kubernetes node was lost or shut down, or it was evicted.
        reason = pod.reason or "PodFailed"
        message = f"{pod.name} {why_pod_failed(pod)}"
        return Fault(_failure(world, pod, Cause.INFRASTRUCTURE, reason, message))
    if end.exit_code == ExitCode.PREEMPTED:
        message = f"{pod.name} was stopped on request"
        return Fault(_failure(world, pod, Cause.FREE, STOPPED, message))
    cause, reason, how = classify(pod, end)
    failure = _failure(world, pod, cause, reason, f"{pod.name} {how}")
    return Fault(
        failure.model_copy(update={"exit_code": end.exit_code, "time": end.at or world.now}),
        at=end.at.timestamp() if end.at else math.inf,
        permanent=end.exit_code in _PERMANENT,
    )


def _failed_init_container(world: World, pod: PodView, end: InitFailure) -> Fault:
    """Return the fault of a pod whose init container failed, so that its worker never started."""
    how = (
        "ran out of memory"
        if end.reason == "OOMKilled"
        else f"failed with exit code {end.exit_code}"
    )
    words = f": {end.words}" if end.words else ""
    message = f"init container {end.container} of {pod.name} {how}{words}"
    reason = end.reason if end.reason in {"OOMKilled", *NOT_STARTED} else "InitContainerFailed"
    failure = _failure(world, pod, Cause.APPLICATION, reason, message)
    return Fault(failure.model_copy(update={"exit_code": end.exit_code}))


def _lost_pod(world: World, index: int, pod: PodView | None) -> Fault:
    if pod is not None and pod.disruption is not None:
        return Fault(_disrupted(world, pod, pod.disruption, world.now))
    name = world.pod_name(index)
    return Fault(
        FailureStatus(
            attempt=world.job.status.attempt,
            reason="PodLost",
            cause=Cause.INFRASTRUCTURE,
            pod=name,
            node=pod.node if pod else None,
            message=f"{name} was deleted",
            time=world.now,
        )
    )


def _disrupted(world: World, pod: PodView, reason: str, time: datetime) -> FailureStatus:
    # Reasons of other controllers concern the infrastructure: the user has not requested them.
    default = (Cause.INFRASTRUCTURE, f"was disrupted: {reason}")
    cause, how = _DISRUPTIONS.get(reason, default)
    if reason == UNREACHABLE_REASON and not is_unreachable(world, pod):
        cause = Cause.FREE  # An administrator has set the taint, as for a drain.
    sentence = f": {pod.disruption_message}" if pod.disruption_message else ""
    failure = _failure(world, pod, cause, reason, f"{pod.name} {how}{sentence}")
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
