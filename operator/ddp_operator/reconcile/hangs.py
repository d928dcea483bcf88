"""Find the rank that all other ranks wait for, from the agent statuses of a hung attempt.

When one rank stops, all ranks stop at their next collective, so a lack of progress alone does not
identify the rank. Each agent reports the ranks of its node that make no progress. The operator
decides once all nodes have reported, or `GATHER_WAIT` has passed. It compares two independent kinds
of evidence, the witnesses:

- torch's record of the collectives shows which ranks are not in the collective in which other ranks
    wait.
- the stacks show which ranks wait for no other rank, or are blocked in the kernel.

The message names a rank and its witnesses, and states where the witnesses disagree. The attempt
ends only if that rank exceeds the limit of its own activity, for example loading data. Until then
the status shows it as a suspect, because it may only be slow.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ddp_operator.api.status import Cause, DDPJobStatus, FailureStatus, SuspectStatus
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.world import World
from ddp_wire.messages import INSPECTED_COLLECTIVES, AgentStatus, HungRank, RankInspection

HUNG = "Hung"
"""Reason of the failure of an attempt that made no progress."""
NO_PROGRESS = "NoProgress"
"""Reason of the Event about a suspect: a rank that makes no progress."""
GATHER_WAIT = timedelta(seconds=5)
"""Maximum wait for the statuses of other nodes. Their agents check their ranks once per second."""
_LONG_SECONDS = 60.0
"""Seconds without progress after which the status names rank 0 even within its limits."""
_NAMED = 4
"""Maximum number of ranks that a sentence names."""
_LIBRARIES = ("/lib/python", "/site-packages/", "/dist-packages/")
"""Parts of library paths. A message shows the innermost frame outside the libraries."""

Ranks = frozenset[int]


@dataclass(frozen=True)
class Verdict:
    """The ranks that all other ranks wait for, and the evidence that identifies them."""

    ranks: Ranks
    """Numbers of the ranks. Empty if no evidence identifies a rank."""
    how: str
    """Name of the evidence as a part of a sentence, for example `shown by the stacks alone`."""


def has_hung(world: World) -> bool:
    """Return whether the attempt must end because the rank that others wait for hangs.

    A rank that loads data, runs a hook or compiles has a longer limit than the waiting ranks.
    """
    if not _makes_no_progress(world):
        return False
    found, verdict = _judged(world)
    return not verdict.ranks or any(r not in found or found[r].overdue for r in verdict.ranks)


def suspect(world: World) -> SuspectStatus | None:
    """Return the rank that makes no progress now, or None. The attempt continues."""
    if not _makes_no_progress(world) or not is_complete(world):
        return _slow_rank_zero(world)
    found, verdict = _judged(world)
    rank = min(verdict.ranks & found.keys(), default=None)
    if rank is None:
        return None
    return _as_suspect(world, found[rank], _sentence(world, verdict, found))


def suspect_events(world: World, status: DDPJobStatus) -> list[Event]:
    """Return the Event about a new suspect. Rank 0 in a long save gets no Event."""
    old, new = world.job.status.suspect, status.suspect
    if new is None or new == old or not _makes_no_progress(world):
        return []
    return [Event(EventType.WARNING, NO_PROGRESS, f"{new.message}; it may only be slow")]


def _slow_rank_zero(world: World) -> SuspectStatus | None:
    """Return rank 0 if it makes no progress for long, for example in a save to a frozen volume."""
    agent = next(_agent_statuses(world))
    rank = next((r for r in agent.ranks if r.rank == 0), None) if agent is not None else None
    if rank is None or not rank.activity or (rank.idle_seconds or 0.0) < _LONG_SECONDS:
        return None
    pod = world.pod_name(world.members[0])
    sentence = f"rank 0 on {pod} makes no progress in {rank.activity} of update {rank.step + 1}"
    seconds = rank.idle_seconds or 0.0
    hung = HungRank(rank=0, step=rank.step, activity=rank.activity, seconds=seconds)
    return _as_suspect(world, hung, sentence)


def _as_suspect(world: World, hung: HungRank, sentence: str) -> SuspectStatus | None:
    pod, known = world.pod_of(hung.rank), world.job.status.suspect
    if pod is None:
        return None
    found = SuspectStatus(
        rank=hung.rank,
        pod=pod.name,
        node=pod.node,
        activity=hung.activity,
        step=hung.step,
        message=sentence[:2048],
        since=_time(world, [hung]).replace(microsecond=0),
    )
    same = {"message", "since"}  # A new status alone must not change them.
    if known is not None and known.model_dump(exclude=same) == found.model_dump(exclude=same):
        return known
    return found


def _judged(world: World) -> tuple[dict[int, HungRank], Verdict]:
    """Return the inspected ranks, and the ranks that all other ranks wait for."""
    found = {one.rank: one for one in _inspected(world)}
    silent = frozenset(range(world.ranks)) - found.keys()
    return found, judge(found, silent)


def _makes_no_progress(world: World) -> bool:
    """Return whether no rank of the current attempt makes progress.

    Every agent that answers must report this. A rank within its limit may only be slow.
    """
    agents = [agent for agent in _agent_statuses(world) if agent is not None]
    return bool(agents) and all(agent.hang for agent in agents)


def is_complete(world: World) -> bool:
    """Return whether all agents have reported, or the wait for silent agents has ended."""
    if world.undecided_for is not None and world.undecided_for >= GATHER_WAIT:
        return True
    return all(agent is not None for agent in _agent_statuses(world))


def failure(world: World) -> FailureStatus:
    """Return the failure of a hung attempt. At least one agent must have reported the hang."""
    found, verdict = _judged(world)
    rank = min(verdict.ranks, default=None)
    pod = None if rank is None else world.pod_of(rank)
    culprit = None if rank is None else found.get(rank)
    inspection = culprit.inspection if culprit else None
    return FailureStatus(
        attempt=world.job.status.attempt,
        reason=HUNG,
        cause=_cause(culprit),
        pod=pod.name if pod else None,
        node=pod.node if pod else None,
        rank=rank,
        message=_sentence(world, verdict, found),
        traceback=(inspection.stack or None) if inspection else None,
        time=_time(world, found.values()),
    )


def judge(found: Mapping[int, HungRank], silent: Ranks) -> Verdict:
    """Return the ranks of an attempt that all others wait for, with the evidence.

    Args:
        found: Inspection results of the ranks whose agents have reported.
        silent: Numbers of the other ranks, whose agents did not report.
    """
    recorded = by_collectives(found, silent)
    seen = by_stacks(found, silent)
    if recorded and seen:
        if both := recorded & seen:
            return Verdict(both, "shown by both the record of the collectives and the stacks")
        others = _listed(recorded)
        return Verdict(
            seen, f"shown by the stacks; the record of the collectives names {others} instead"
        )
    if seen:
        return Verdict(seen, "shown by the stacks alone")
    if recorded:
        return Verdict(recorded, "shown by the record of the collectives alone")
    return Verdict(frozenset(), "")


def by_collectives(found: Mapping[int, HungRank], silent: Ranks) -> Ranks:
    """Return the ranks that other ranks wait for, from torch's record of the collectives.

    If ranks have begun different collectives with the same number, return the minority: these ranks
    have skipped a collective or called an extra one. Otherwise return the ranks that have begun
    fewer collectives than the other ranks.
    """
    known = {r: i for r, one in found.items() if (i := one.inspection) is not None and i.number}
    if not known:
        return frozenset()
    numbers = {rank: i.number or 0 for rank, i in known.items()}
    last = min(numbers.values())
    for number in range(last - INSPECTED_COLLECTIVES, last + 1):
        names = {rank: n for rank, i in known.items() if (n := _collective_at(i, number))}
        if len(set(names.values())) > 1:
            return _minority(names)
    newest = max(numbers.values())
    behind = {rank for rank, number in numbers.items() if number < newest}
    return frozenset(behind | (found.keys() - known.keys()) | silent)


def by_stacks(found: Mapping[int, HungRank], silent: Ranks) -> Ranks:
    """Return the ranks that wait for no other rank, or are blocked, according to their stacks.

    If all ranks wait, return those that are in a different part of the update than most ranks.
    """
    waiting = {rank: one for rank, one in found.items() if _waits(one)}
    idle = (found.keys() | silent) - waiting.keys()
    if idle:
        return frozenset(idle)
    return _minority({rank: (one.step, one.activity) for rank, one in waiting.items()})


def _minority(values: Mapping[int, Hashable]) -> Ranks:
    """Return the ranks whose value differs from that of most ranks; none for equal halves."""
    (usual, count), *_ = Counter(values.values()).most_common()
    if 2 * count <= len(values):
        return frozenset()
    return frozenset(rank for rank, value in values.items() if value != usual)


def _collective_at(inspection: RankInspection, number: int) -> str | None:
    """Return the collective with a number, or None if the inspection does not contain it."""
    index = len(inspection.collectives) - 1 - ((inspection.number or 0) - number)
    return inspection.collectives[index] if 0 <= index < len(inspection.collectives) else None


def _waits(one: HungRank) -> bool:
    return not one.blocked and one.inspection is not None and one.inspection.waits


def _agent_statuses(world: World) -> Iterator[AgentStatus | None]:
    """Yield the status of each node's agent in the current attempt, or None if it is silent."""
    for index in world.members:
        pod = world.pod(index)
        agent = world.agent_status(pod) if pod is not None else None
        current = agent is not None and agent.attempt == world.job.status.attempt
        yield agent if current else None


def _inspected(world: World) -> Iterator[HungRank]:
    """Yield all inspected ranks. Ignore an agent's reports about ranks of other nodes."""
    for index, agent in enumerate(_agent_statuses(world)):
        first = index * world.job.spec.ranks_per_node
        own = range(first, first + world.job.spec.ranks_per_node)
        yield from (one for one in (agent and agent.hang) or () if one.rank in own)


def _cause(culprit: HungRank | None) -> Cause:
    """Return the class of the fault: the application's if the hung process runs its own code."""
    runs = culprit is not None and culprit.inspection is not None and not culprit.blocked
    return Cause.APPLICATION if runs else Cause.INFRASTRUCTURE


def _sentence(world: World, verdict: Verdict, found: Mapping[int, HungRank]) -> str:
    longest = max((one.seconds for one in found.values()), default=0.0)
    if not verdict.ranks:
        where = next((w for one in found.values() if (w := _collective(one))), "each other")
        return (
            f"no rank made progress for {longest:.0f} s: all ranks wait in {where}, so check the"
            " network between them and whether all call the same collectives"
        )
    rank = min(verdict.ranks)
    pod = world.pod_name(world.members[rank // world.job.spec.ranks_per_node])
    who = f"{_listed(verdict.ranks)} on {pod}" + (" and others" if len(verdict.ranks) > 1 else "")
    return f"{who} made no progress for {longest:.0f} s{_what(found.get(rank))} ({verdict.how})"


def _what(culprit: HungRank | None) -> str:
    """Return the activity of the hung rank, as the continuation of a sentence."""
    if culprit is None:
        return ", and its agent does not report"
    text = f" in {culprit.activity} of update {culprit.step + 1}"
    if culprit.blocked:
        return f"{text}: {culprit.blocked}"
    if culprit.inspection is None:
        return f"{text}: its process does not answer"
    if culprit.inspection.waits:
        where = _collective(culprit) or "a collective"
        return f"{text}: it waits in {where}, and the other ranks wait in another collective"
    frame = _innermost(culprit.inspection.stack)
    return f"{text}: {frame}" if frame else text


def _collective(one: HungRank) -> str | None:
    inspection = one.inspection
    if inspection is None or not inspection.collectives:
        return None
    return f"{inspection.collectives[-1]} (number {inspection.number})"


def _innermost(stack: str) -> str:
    """Return the innermost stack frame outside the libraries, on one line."""
    frames: list[list[str]] = []
    for line in stack.splitlines():
        if line.strip().startswith('File "'):
            frames.append([])
        if frames:
            frames[-1].append(line.strip())
    texts = [" ".join(frame) for frame in frames]
    own = [text for text in texts if not any(part in text for part in _LIBRARIES)]
    return (own or texts or [""])[-1]


def _listed(ranks: Ranks) -> str:
    some = ", ".join(map(str, sorted(ranks)[:_NAMED]))
    more = len(ranks) - _NAMED
    return f"rank{'s' * (len(ranks) > 1)} {some}" + (f" and {more} more" if more > 0 else "")


def _time(world: World, found: Iterable[HungRank]) -> datetime:
    """Return the time of the last progress, by the operator's clock."""
    seconds = max((max(0.0, one.seconds) for one in found), default=0.0)
    return world.now - timedelta(seconds=min(seconds, 1e9))
