"""Choose the members of each attempt of an elastic job.

`spec.nodes` is the number of nodes that the user asks for. The operator keeps one pod for each of
them, and a pod that gets no Kubernetes node stays Pending, so the scheduler itself shows when there
is room again. An attempt trains on its members, and a change of the members is a new attempt:

- Start: all nodes, or those that are ready after `startWaitSeconds`.
- Shrink: a lost node is still a member of the next attempt. If it is not ready `shrinkAfterSeconds`
  after the start of that attempt, another attempt follows without it. A node that somebody drains
  is left out at once, and one that is about to be disrupted is left out before it is lost.
- Grow: an attempt that trains is stopped at a step boundary once other nodes are ready, not earlier
  than `growAfterSeconds` after the last change. A node that left twice within an hour must wait.

At least `minNodes` nodes train. With fewer, the attempt waits. A change of the members costs no
budget, and the state of the run does not depend on their number.

A spare is a further pod that is ready to train. It takes the place of a lost member at once, even
in a job of a fixed size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile import departures, gpu_products
from ddp_operator.reconcile.abandoned import is_unreachable
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentPhase

Members = frozenset[int]

_FRESH_STARTS = frozenset({"Suspended", "SpecChanged", "GangReplaced", "Invalid"})
"""Reasons of ended attempts after which all pods start together, as in the first attempt."""
_NAMED = 4
"""Maximum number of nodes that a sentence names."""


@dataclass(frozen=True)
class SizeLimits:
    """Limits for the number of members, and for changes of this number."""

    nodes: int
    """Number of nodes that the job asks for."""
    least: int
    """Minimum number of members."""
    start_wait_seconds: int
    shrink_after_seconds: int
    grow_after_seconds: int


@dataclass(frozen=True)
class Resize:
    """A change of the members that the operator must start now."""

    members: Members
    why: str
    """Reason for the change, as a clause that follows the word `because`."""


def after_fault(world: World) -> Members:
    """Return the members of the attempt that follows a fault.

    Living members stay. Ready nodes take the place of lost members. A lost member without a
    substitute stays a member until `shrinkAfterSeconds` have passed.
    """
    limits, possible = limits_of(world.job), frozenset(range(world.job.pods))
    if limits is None:
        return possible
    lost = {i for i in world.members if _is_lost(world.pod(i))}
    chosen = [i for i in world.members if i in possible and i not in lost]
    chosen += _candidates(world)
    chosen += sorted(i for i in lost & possible if not _is_drained(world, world.pod(i)))
    if len(chosen) < limits.least:
        chosen += sorted(possible - set(chosen))
    return frozenset(chosen[: limits.nodes])


def due(world: World) -> Resize | None:
    """Return the change of the members to start now, or None. The attempt must have no fault."""
    limits = limits_of(world.job)
    if limits is None:
        return None
    if len(world.members) > limits.nodes or max(world.members) >= world.job.pods:
        return _scaled_down(world, limits)
    if not world.has_started:
        return _without_late_members(world, limits)
    if world.job.status.is_true(ConditionType.RENDEZVOUSED) and _all_train(world):
        return _without_disrupted_members(world, limits) or _grown(world, limits)
    return None


def seconds_until_due(world: World) -> float | None:
    """Return the seconds until a change of the members may become due without an event, or None."""
    limits, status = limits_of(world.job), world.job.status
    if limits is None:
        return None
    if not world.has_started and _absent(world):
        since = _waits_since(world), _patience(world, limits)
    elif status.is_true(ConditionType.RENDEZVOUSED) and _may_grow(world, limits):
        since = _last_change(world), limits.grow_after_seconds
    else:
        return None
    return max(0.1, _left(*since, world.now))


def limits_of(job: DDPJob) -> SizeLimits | None:
    """Return the limits of a job, or None if each attempt trains on all its pods."""
    elastic = job.spec.elastic
    if elastic is None:
        fixed = SizeLimits(job.nodes, job.nodes, 0, 0, 0)
        return fixed if job.spec.spares else None
    return SizeLimits(
        job.nodes,
        elastic.min_nodes,
        elastic.start_wait_seconds,
        elastic.shrink_after_seconds,
        elastic.grow_after_seconds,
    )


def lost_nodes(world: World) -> frozenset[str]:
    """Return the Kubernetes nodes on which members were lost."""
    if not world.job.spec.may_leave_nodes_out:
        return frozenset()
    lost = (index for index in world.members if _is_lost(world.pod(index)))
    return frozenset(node for index in lost if (node := world.last_nodes.get(index)))


def ready_spares(world: World) -> str | None:
    """Return the ready spares out of all spares, as `1/2`, or None if the job has no spares."""
    spares = world.job.spec.spares
    return f"{len(_candidates(world))}/{spares}" if spares else None


def next_growth(world: World) -> str | None:
    """Return a message about when a job with missing nodes grows again."""
    limits, status = limits_of(world.job), world.job.status
    if limits is None or len(world.members) >= limits.nodes:
        return None
    ready, last = _steady_candidates(world), _last_change(world)
    if ready and last is not None:
        due_at = last + timedelta(seconds=limits.grow_after_seconds)
        return f"the operator adds {_subject(ready)} at {due_at:%H:%M:%S} UTC"
    for index in sorted(set(range(world.job.pods)) - set(world.members)):
        pod = world.pod(index)
        if pod is not None and pod.node in departures.unsteady_nodes(status, world.now):
            back = departures.usable_from(status, pod.node or "", world.now)
            return (
                f"none: members left the Kubernetes node {pod.node} twice within an hour, so the"
                f" job grows onto it at {back:%H:%M} UTC at the earliest"
            )
    return None


def trains(world: World, status: DDPJobStatus) -> bool:
    """Return whether an elastic job trains, even if some of its pods wait for a node."""
    return world.job.spec.may_leave_nodes_out and status.is_true(ConditionType.RENDEZVOUSED)


def _all_train(world: World) -> bool:
    """Return whether the newest agent statuses show that all members train.

    Otherwise a rank may already be lost, and the remaining ranks could not agree on the update to
    save.
    """
    pods = [world.pod(index) for index in world.members]
    agents = [world.agent_status(pod) if pod is not None else None for pod in pods]
    attempt = world.job.status.attempt
    return all(a and a.attempt == attempt and a.phase is AgentPhase.TRAINING for a in agents)


def _scaled_down(world: World, limits: SizeLimits) -> Resize:
    """Return the change of the members after the user has reduced `nodes` or `spares`."""
    kept = [i for i in world.members if i < world.job.pods] + _candidates(world)
    if len(kept) < limits.least:
        kept += sorted(set(range(world.job.pods)) - set(kept))
    members = frozenset(kept[: limits.nodes])
    spares = f" and spec.spares is {world.job.spec.spares}" if world.job.spec.spares else ""
    return Resize(members, f"spec.nodes is {limits.nodes}{spares}")


def _without_late_members(world: World, limits: SizeLimits) -> Resize | None:
    """Return the change that starts the attempt without nodes that were not ready in time."""
    absent = _absent(world)
    if any(_still_stops(world, index) for index in absent):
        return None  # Its ranks save, or are killed when their time is over.
    ready = _with_candidates(world, limits, absent)
    if not absent or len(ready) < limits.least or ready == frozenset(world.members):
        return None
    patience = _patience(world, limits)
    substituted = len(ready) >= len(world.members)
    if not substituted and _left(_waits_since(world), patience, world.now) > 0.0:
        return None
    after = "" if substituted else f" after {patience} s"
    return Resize(ready, f"{_named(absent)} not ready{after}")


def _without_disrupted_members(world: World, limits: SizeLimits) -> Resize | None:
    """Return the change that removes members before an announced disruption ends them."""
    pods = [(i, pod) for i in world.members if (pod := world.pod(i)) is not None]
    # The ranks on a Kubernetes node that is lost can save nothing: this is a fault, found later.
    answering = [(i, pod) for i, pod in pods if not is_unreachable(world, pod)]
    going = {i: why for i, pod in answering if (why := world.why_going(pod))}
    rest = _with_candidates(world, limits, frozenset(going))
    if not going or len(rest) < limits.least:
        return None
    return Resize(rest, f"{_named(going)} leaving: {going[min(going)]}")


def _grown(world: World, limits: SizeLimits) -> Resize | None:
    """Return the change of the members that adds all ready nodes."""
    if not _may_grow(world, limits):
        return None
    if _left(_last_change(world), limits.grow_after_seconds, world.now) > 0.0:
        return None
    room = limits.nodes - len(world.members)
    added = frozenset(_steady_candidates(world)[:room])
    return Resize(added.union(world.members), f"{_named(added)} ready")


def _may_grow(world: World, limits: SizeLimits) -> bool:
    """Return whether the attempt has room for another member and a ready node exists."""
    return len(world.members) < limits.nodes and bool(_steady_candidates(world))


def _with_candidates(world: World, limits: SizeLimits, without: Members) -> Members:
    """Return the members without some nodes, and with ready nodes in their place."""
    kept = [index for index in world.members if index not in without] + _candidates(world)
    return frozenset(kept[: limits.nodes])


def _candidates(world: World) -> list[int]:
    """Return the nodes that are not members and could train at once, the steady ones first."""
    steady = _steady_candidates(world)
    others = (index for index in _ready_nodes(world) if index not in steady)
    return [*steady, *others]


def _steady_candidates(world: World) -> list[int]:
    """Return the ready nodes whose Kubernetes node has not lost two members within an hour."""
    unsteady = departures.unsteady_nodes(world.job.status, world.now)
    pods = ((index, world.pod(index)) for index in _ready_nodes(world))
    return [index for index, pod in pods if pod is not None and pod.node not in unsteady]


def _ready_nodes(world: World) -> list[int]:
    found, members = [], frozenset(world.members)
    misplaced = gpu_products.misplaced_pods(world)
    for index in range(world.job.pods):
        pod = world.pod(index)
        if index in members or pod is None or pod.name in misplaced or world.why_going(pod):
            continue
        if is_ready(world, pod):
            found.append(index)
    return found


def is_ready(world: World, pod: PodView) -> bool:
    """Return whether a pod's agent has the attempt order and could start the attempt now."""
    agent = world.agent_status(pod)
    if agent is None or pod.deleting or pod.terminal or agent.attempt != world.job.status.attempt:
        return False
    waits = agent.phase in {AgentPhase.WAITING, AgentPhase.STARTING, AgentPhase.TRAINING}
    return waits and bool(agent.warm)


def _still_stops(world: World, index: int) -> bool:
    """Return whether a living member's agent is still ending the previous attempt."""
    pod = world.pod(index)
    agent = world.agent_status(pod) if pod is not None and not _is_lost(pod) else None
    return agent is not None and 0 < agent.attempt < world.job.status.attempt


def _absent(world: World) -> Members:
    """Return the members whose pods are not ready."""
    found = set()
    for index in world.members:
        pod = world.pod(index)
        if pod is None or not is_ready(world, pod):
            found.add(index)
    return frozenset(found)


def _is_lost(pod: PodView | None) -> bool:
    return pod is None or pod.deleting or pod.terminal


def _is_drained(world: World, pod: PodView | None) -> bool:
    """Return whether a lost pod was disrupted on purpose, so that it will not return soon."""
    return pod is not None and pod.disruption is not None and not is_unreachable(world, pod)


def _patience(world: World, limits: SizeLimits) -> int:
    """Return how many seconds the attempt waits for members that are not ready."""
    last = world.job.status.attempts[-1:]
    starts = all(attempt.reason in _FRESH_STARTS for attempt in last)
    return limits.start_wait_seconds if starts else limits.shrink_after_seconds


def _waits_since(world: World) -> datetime | None:
    """Return the time from which the attempt waits for members that are not ready.

    The pods outside a gang are created when the gang has been placed, perhaps after hours.
    """
    start, gang = world.job.status.attempt_start_time, ConditionType.GANG_SCHEDULED
    scheduled = world.job.status.condition(gang)
    if start is None or scheduled is None or not world.job.status.is_true(gang):
        return start
    return max(start, scheduled.last_transition_time)


def _last_change(world: World) -> datetime | None:
    """Return the time of the last change of the members, or else the attempt's start time."""
    last = world.job.status.last_resize
    return last.time if last is not None else world.job.status.attempt_start_time


def _left(since: datetime | None, seconds: int, now: datetime) -> float:
    """Return the remaining seconds of a wait. A future start means that the clock was set back."""
    if since is None or since > now + timedelta(seconds=1):
        return 0.0
    return (since + timedelta(seconds=seconds) - now).total_seconds()


def _subject(nodes: Iterable[int]) -> str:
    """Return a list of nodes as the subject of a sentence."""
    given = sorted(nodes)
    more = len(given) - _NAMED
    text = ", ".join(map(str, given[:_NAMED])) + (f" and {more} more" if more > 0 else "")
    return f"nodes {text}" if len(given) > 1 else f"node {text}"


def _named(nodes: Iterable[int]) -> str:
    """Return a list of nodes and the matching verb, as the start of a sentence."""
    given = list(nodes)
    return f"{_subject(given)} {'are' if len(given) > 1 else 'is'}"
