"""Emit the events of a run: one JSON object per line on standard output, from global rank 0."""

import json
import math
import sys
import time
from typing import Any

from ddp_trainer.observe.history_writer import HistoryWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.trackers.trackers import Trackers

DIGITS = 6
"""Number of significant digits of numbers in events."""
_PER_RANK = frozenset({"progress"})
"""Types of events whose values differ between ranks."""


class EventLog:
    """Writer of events. By default only global rank 0 prints them."""

    def __init__(
        self,
        ranks: Ranks,
        attempt: int,
        *,
        all_ranks: bool = False,
        history: HistoryWriter | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        """Choose which events this rank prints.

        Args:
            ranks: This process's rank.
            attempt: Number of the attempt.
            all_ranks: Whether every rank prints the events whose values differ between ranks.
            history: File that stores the events.
            trackers: Experiment trackers that log the values of the events.
        """
        self._trackers = trackers
        if trackers is not None:
            trackers.warn_with(lambda message: self.emit("warning", message=message))
        self._history = history
        self._ranks = ranks
        self._attempt = attempt
        other = _PER_RANK if all_ranks else frozenset[str]()
        self._printed = None if ranks.is_first else other

    def emit(self, event: str, **fields: Any) -> None:
        """Print one event.

        Args:
            event: Type of the event: start, resume, complete, progress, eval, checkpoint, note,
                warning, profile, stop or summary.
            fields: JSON values. Numbers that are not finite become null, because JSON has none.
        """
        if self._printed is not None and event not in self._printed:
            return
        now = round(time.time(), 3)
        head = {"event": event, "time": now, "rank": self._ranks.rank}
        document = head | {"attempt": self._attempt} | _rounded(fields)
        line = json.dumps(document, allow_nan=False) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if self._history is not None:
            self._history.write(event, now, line)
        if self._trackers is not None:
            self._trackers.write(event, document)

    def close(self) -> None:
        """Wait briefly until history and trackers have all events. No event may follow."""
        if self._trackers is not None:
            self._trackers.close()
        if self._history is not None:
            self._history.close()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
