"""Compute the goodput buckets of a run from its history."""

from collections.abc import Iterable
from itertools import pairwise

from ddp_operator.report.history import Attempt, Evaluation, History, Save
from ddp_operator.report.timeline import RunTimeline

TRAINING = "Training"
REPEATED = "Repeated updates"
EVALUATION = "Evaluation"
CHECKPOINTS = "Checkpoints"
OTHER = "Start, recovery, pauses"


def measured_goodput(history: History, timeline: RunTimeline) -> dict[str, float]:
    """Return seconds by bucket. Their sum is the length of the time axis.

    Updates count as repeated if a later attempt resumed from an earlier update. The result is empty
    without any progress event.
    """
    if not history.points or timeline.seconds <= 0:
        return {}
    buckets = {
        TRAINING: 0.0,
        REPEATED: 0.0,
        EVALUATION: sum(event.seconds for event in history.evaluations),
        CHECKPOINTS: sum(event.seconds for event in history.saves),
    }
    # Each progress event of an attempt ends a span. The attempt's start begins the first one.
    ends = [[(attempt.start, attempt.resumed_from or 0)] for attempt in history.attempts]
    for point in history.points:
        ends[point.attempt].append((point.time, point.step))
    for index, spans in enumerate(ends):
        kept = _kept_until(history.attempts[index + 1 :])
        pauses = _Pauses([*history.evaluations, *history.saves], index)
        for (before, first), (after, last) in pairwise(spans):
            seconds = max(0.0, after - before - pauses.between(before, after))
            lost = (last - max(first, kept)) / (last - first) if last > first else 0.0
            lost = min(1.0, max(0.0, lost))
            buckets[REPEATED] += seconds * lost
            buckets[TRAINING] += seconds * (1 - lost)
    rest = timeline.seconds - sum(buckets.values())
    return {**buckets, OTHER: max(0.0, rest)}


class _Pauses:
    """Seconds that one attempt spent on evaluations and checkpoints."""

    def __init__(self, events: Iterable[Evaluation | Save], attempt: int) -> None:
        own = ((e.time, e.seconds) for e in events if e.attempt == attempt)
        self._events = sorted(own)
        self._next = 0

    def between(self, before: float, after: float) -> float:
        """Return the seconds of the pauses in a time span. Successive spans must ascend."""
        seconds = 0.0
        while self._next < len(self._events) and self._events[self._next][0] <= after:
            at, duration = self._events[self._next]
            seconds += duration if at > before else 0.0
            self._next += 1
        return seconds


def _kept_until(later: Iterable[Attempt]) -> float:
    """Return the lowest step from which a later attempt resumed."""
    starts = (other.resumed_from or 0 for other in later if other.world_size is not None)
    return min(starts, default=float("inf"))
