"""Detect that a node's ranks make no progress, and inspect these ranks.

Each rank shares its current activity and start time with the agent through memory. The detector
checks them once per second:

1. If all running ranks of the node exceed the short limit of their activity, they are suspects.
While one rank is within its limit, for example in a long save, there is no hang. All ranks wait for
a hung rank, so soon the ranks of every node are suspects.
2. Ask the suspects for their stacks and collectives. Wait at most 2 s for the answers.
3. Put one finding per rank into the status: its activity, the duration, and whether it exceeds the
    longer limit that ends an attempt. That limit allows for storage failover and for slow hooks.
4. The operator compares the statuses of all nodes, and finds the rank that all others wait for. It
orders the next attempt once that rank exceeds the longer limit. If the operator sends no order, the
agent itself ends the attempt after some time (`is_overdue`).

Process: agent (loop).
"""

import contextlib
import logging
import math
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ddp_agent.clock import Clock
from ddp_agent.hang_limits import HangLimits
from ddp_agent.status.heartbeats import read_heartbeats
from ddp_wire.activity import (
    ANSWER_SUFFIX,
    QUESTION_SUFFIX,
    ActivityRecord,
    read_activities,
)
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.messages import Failure, HungRank, LocalHeartbeat, RankInspection, RankPhase
from ddp_wire.processes import blocked_process

_log = logging.getLogger("ddp_agent")

LOOK_SECONDS = 1.0
"""Seconds between two checks of the activity records."""
ANSWER_SECONDS = 2.0
"""Maximum seconds to wait for the ranks' answers."""
_FEWEST_UPDATES = 3
"""Minimum number of updates for an estimate of the update time."""
_PAUSED_SECONDS = 5.0
"""Seconds between two checks after which the detector assumes that the agent and its ranks were
paused."""
_MOST_STACKS = 2
"""Maximum number of ranks per node whose stacks the status contains. The operator keeps all
statuses of a large job in memory, and it names the lowest rank."""


class HangDetector:
    """Hang detector of one attempt. Only the agent's loop calls it. No call blocks."""

    def __init__(self, limits: HangLimits, directory: Path, attempt: int, clock: Clock) -> None:
        """Create a detector without findings.

        Args:
            limits: Hang limits of the job.
            directory: Directory of the heartbeats.
            attempt: Number of the attempt.
            clock: Source of time.
        """
        self._limits, self._directory, self._attempt = limits, directory, attempt
        self._clock = clock
        self._looked = self._not_before = clock.monotonic()
        self._asked: float | None = None
        """Time of the question to the ranks, or None while no rank hangs."""
        self._found: list[HungRank] | None = None
        self._found_at = 0.0
        """Time of the first finding, while the ranks make no progress."""
        self._overdue: frozenset[int] = frozenset()
        """Local ranks that exceeded the limit that ends an attempt when the agent inspected
        them."""
        self._compiling: frozenset[int] = frozenset()

    @property
    def is_overdue(self) -> bool:
        """Whether the agent must end the attempt itself, because the operator sends no order.

        The operator, which knows all nodes, may deliberately wait for a rank within its limit.
        """
        if self._found is None:
            return False
        return self._clock.monotonic() - self._found_at > self._limits.longest

    def look(self) -> list[HungRank] | None:
        """Return the inspected ranks of the node while all of them hang, or None."""
        now = self._clock.monotonic()
        if not self._limits.detect:
            return None
        if self._asked is None and now < self._looked + LOOK_SECONDS:
            return self._found
        if now > self._looked + _PAUSED_SECONDS:
            self._not_before = now
        self._looked = now
        records = read_activities(self._directory)
        heartbeats = read_heartbeats(self._directory, self._attempt)
        p99 = _slowest_p99(heartbeats)
        if not self._all_hang(records, heartbeats, now, p99):
            self._asked = self._found = None
            self._overdue = self._compiling = frozenset()
            return None
        overdue = self._exceeding(records, now, p99)
        if self._asked is None and (self._found is None or overdue != self._overdue):
            self._asked = now
            _ask(self._directory, records)
        if self._asked is not None and self._is_answered(records, now):
            self._take(self._inspect(records, heartbeats, now), heartbeats, now)
            self._overdue = overdue = self._exceeding(records, now, p99)
            self._asked = None
            self._found = [self._with_overdue(one, heartbeats) for one in self._found or ()]
            for one in self._found:
                _log.warning("%s", sentence(one))
        return self._found

    def _take(self, found: list[HungRank], beats: Sequence[LocalHeartbeat], now: float) -> None:
        """Store the answers of the ranks."""
        if self._found is None:
            self._found_at = now
        self._found = found
        compiling = {one.rank for one in found if one.inspection and one.inspection.compiles}
        self._compiling = frozenset(one.local_rank for one in beats if one.rank in compiling)

    def _with_overdue(self, one: HungRank, beats: Sequence[LocalHeartbeat]) -> HungRank:
        local = {beat.rank: beat.local_rank for beat in beats}
        return one.model_copy(update={"overdue": local[one.rank] in self._overdue})

    def _exceeding(
        self, records: Mapping[int, ActivityRecord], now: float, p99: float | None
    ) -> frozenset[int]:
        """Return the local ranks that exceed the limit that ends an attempt."""
        return frozenset(
            rank
            for rank, record in records.items()
            if now - max(record.since, self._not_before)
            > self._limits.end(record.activity, p99, compiles=rank in self._compiling)
        )

    def _all_hang(
        self,
        records: Mapping[int, ActivityRecord],
        beats: Sequence[LocalHeartbeat],
        now: float,
        p99: float | None,
    ) -> bool:
        done = {one.local_rank for one in beats if one.phase is RankPhase.DONE}
        running = [record for local_rank, record in records.items() if local_rank not in done]
        return bool(running) and all(
            now - max(record.since, self._not_before) > self._limits.of(record.activity, p99)
            for record in running
        )

    def _is_answered(self, records: Mapping[int, ActivityRecord], now: float) -> bool:
        if self._asked is None:
            return False
        answered = all(_answer_path(self._directory, rank).exists() for rank in records)
        return answered or now > self._asked + ANSWER_SECONDS

    def _inspect(
        self, records: Mapping[int, ActivityRecord], beats: Sequence[LocalHeartbeat], now: float
    ) -> list[HungRank]:
        found = []
        for heartbeat in beats:
            record = records.get(heartbeat.local_rank)
            if record is None or heartbeat.phase is RankPhase.DONE:
                continue
            inspection = _read_answer(_answer_path(self._directory, heartbeat.local_rank))
            found.append(
                HungRank(
                    rank=heartbeat.rank,
                    step=record.step,
                    activity=record.activity.name.lower(),
                    seconds=round(now - record.since, 1),
                    blocked="" if heartbeat.pid is None else blocked_process(heartbeat.pid),
                    inspection=inspection,
                )
            )
        return _with_few_stacks(found)


def _slowest_p99(beats: Sequence[LocalHeartbeat]) -> float | None:
    """Return the largest 99th percentile among the local ranks, or None while one is unknown."""
    durations = [p99_seconds(one) for one in beats]
    known = [seconds for seconds in durations if seconds is not None]
    return max(known) if known and len(known) == len(durations) else None


def p99_seconds(heartbeat: LocalHeartbeat) -> float | None:
    """Return an upper bound of the 99th percentile of a rank's update time.

    Return None while the attempt has too few updates.
    """
    counts = heartbeat.times.updates if heartbeat.times else []
    if sum(counts) < _FEWEST_UPDATES:
        return None
    below, wanted = 0, 0.99 * sum(counts)
    for count, bound in zip(counts, UPDATE_SECONDS_BUCKETS, strict=False):
        below += count
        if below >= wanted:
            return bound
    # The last bucket has no upper bound. The mean of its updates cannot exceed the total.
    total = heartbeat.times.update_seconds if heartbeat.times else 0.0
    return total if math.isfinite(total) else 0.0


def describe_hang(found: Sequence[HungRank], attempt: int, at: float) -> Failure:
    """Return the failure of a hung attempt, from the findings of this node alone.

    A node whose ranks all wait in a collective waits for another node.
    """
    stuck = [one for one in found if one.inspection is None or not one.inspection.waits]
    first = next(iter(stuck or found), None)
    return Failure(
        attempt=attempt,
        at=at,
        rank=first and first.rank,
        message=sentence(first)[:1024] if first else "ranks made no progress",
        traceback=first.inspection.stack if first and first.inspection else "",
        secondary=not stuck,
    )


def sentence(hung: HungRank) -> str:
    """Return a finding about one rank as a log message."""
    text = f"rank {hung.rank} has made no progress for {hung.seconds:.0f} s, in {hung.activity}"
    if hung.blocked:
        return f"{text}: {hung.blocked}"
    inspection = hung.inspection
    if inspection is None:
        return f"{text}: it does not answer"
    if inspection.waits and inspection.collectives:
        return f"{text}: it waits in {inspection.collectives[-1]} (number {inspection.number})"
    innermost = inspection.stack.strip().splitlines()[-2:]
    return f"{text}: {' '.join(line.strip() for line in innermost)}"


def _ask(directory: Path, records: Mapping[int, ActivityRecord]) -> None:
    """Request the activity of all local ranks. Skip ranks that do not listen."""
    for local_rank in records:
        _answer_path(directory, local_rank).unlink(missing_ok=True)
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client,
        ):
            client.setblocking(False)
            client.sendto(b"?", str(directory / f"{local_rank}{QUESTION_SUFFIX}"))


def _answer_path(directory: Path, local_rank: int) -> Path:
    return directory / f"{local_rank}{ANSWER_SUFFIX}"


def _read_answer(path: Path) -> RankInspection | None:
    try:
        return RankInspection.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _with_few_stacks(found: list[HungRank]) -> list[HungRank]:
    """Return the findings with the stacks of only a few ranks, those that do not wait first."""
    order = sorted(found, key=lambda one: one.inspection is None or one.inspection.waits)
    kept = {one.rank for one in order[:_MOST_STACKS]}
    return [one if one.rank in kept else _without_stack(one) for one in found]


def _without_stack(one: HungRank) -> HungRank:
    if one.inspection is None:
        return one
    return one.model_copy(update={"inspection": one.inspection.model_copy(update={"stack": ""})})
