"""Choose the seconds between two checkpoints from the cost of a save and the failures of the run.

A save costs time, and a failure costs the time since the newest checkpoint. Their sum is smallest
at about sqrt(2 * cost * mean time between failures): J. W. Young 1974, doi:10.1145/361147.361115;
J. T. Daly 2006, doi:10.1016/j.future.2004.11.016.

- The cost of a save is the median time for which the newest saves stopped training.
- The history of the run (`history.jsonl`) contains its earlier attempts. Each one without a last
  event counts as a failure. A run without failures is assumed to fail once a day.
"""

import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddp_wire.contract import HISTORY_FILE
from ddp_wire.files import open_to_read

SHORTEST, LONGEST = 30, 3600
"""Bounds of a chosen interval, in seconds."""
FIRST_SECONDS = 60
"""Interval in seconds while no save has been measured."""
_ASSUMED_SECONDS = 86_400
"""Seconds of training with one failure, which are added to those of the run."""
_MEASURED_SAVES = 5
"""Number of newest saves whose median is the cost of a save."""
_NOTABLE = 2
"""Ratio of two intervals from which the change is reported."""
_ENDS = frozenset({"stop", "summary", "complete"})
"""Types of events that end an attempt without a failure."""
_READ_EVENTS = frozenset({"start", "progress", "checkpoint"}) | _ENDS
_LARGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Experience:
    """Facts about a run until now."""

    seconds: float = 0.0
    """Time from the start to the newest event of each attempt, in sum."""
    failures: int = 0
    """Number of attempts without a last event."""
    costs: tuple[float, ...] = ()
    """Seconds for which the newest saves stopped training, oldest first."""


class Interval:
    """Seconds between two checkpoints of a run, which follow the measured cost of a save."""

    def __init__(self, experience: Experience = Experience()) -> None:
        self._costs = deque(experience.costs, _MEASURED_SAVES)
        self._between = (_ASSUMED_SECONDS + experience.seconds) / (1 + experience.failures)
        self._failures = experience.failures
        self._reported: int | None = None

    @property
    def seconds(self) -> int:
        """The chosen interval."""
        return chosen(median(self._costs), self._between) if self._costs else FIRST_SECONDS

    def measured(self, seconds: float) -> str | None:
        """Add the cost of a save.

        Args:
            seconds: Time for which the save stopped training.

        Returns:
            A sentence about the interval, if it has changed much since the last sentence.
        """
        self._costs.append(seconds)
        now, last = self.seconds, self._reported
        if last is not None and max(now, last) < _NOTABLE * min(now, last):
            return None
        self._reported = now
        return self.sentence()

    def sentence(self) -> str:
        """Return a sentence about the interval and its reasons. A save must be measured."""
        failures = "1 failure" if self._failures == 1 else f"{self._failures} failures"
        return (
            f"a checkpoint is saved every {self.seconds} s (checkpoint.every_seconds: auto),"
            f" because a save takes {median(self._costs):.2g} s and a failure is expected every"
            f" {self._between / 3600:.3g} h, after {failures} so far"
        )


def chosen(cost: float, between: float) -> int:
    """Return the interval in whole seconds.

    Args:
        cost: Seconds for which a save stops training.
        between: Mean seconds between two failures.
    """
    return round(min(max(math.sqrt(2 * cost * between), SHORTEST), LONGEST))


def read_experience(directory: Path) -> Experience:
    """Return the facts in a run's history. Without a readable history there are none.

    Only call this before the attempt adds its own events.
    """
    try:
        return _summed(_events(directory / HISTORY_FILE))
    except OSError:
        return Experience()


def _summed(events: Iterator[dict[str, Any]]) -> Experience:
    starts: dict[int, float] = {}
    ends: dict[int, tuple[float, str]] = {}
    costs: deque[float] = deque(maxlen=_MEASURED_SAVES)
    for event in events:
        kind, at, attempt = event["event"], event.get("time"), event.get("attempt")
        if not isinstance(at, (int, float)) or not isinstance(attempt, int):
            continue
        starts.setdefault(attempt, at)
        ends[attempt] = at, kind
        seconds = event.get("seconds")
        if kind == "checkpoint" and isinstance(seconds, (int, float)) and seconds >= 0:
            costs.append(seconds)
    return Experience(
        seconds=sum(max(0.0, at - starts[attempt]) for attempt, (at, _) in ends.items()),
        failures=sum(kind not in _ENDS for _, kind in ends.values()),
        costs=tuple(costs),
    )


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with open(open_to_read(path), "rb") as file:  # noqa: PTH123 (a descriptor)
        while line := file.readline(_LARGEST_LINE):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            kind = event.get("event") if isinstance(event, dict) else None
            if isinstance(kind, str) and kind in _READ_EVENTS:
                yield event
