"""Emit the events of a run: one line each on standard output, from global rank 0."""

import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from ddp_trainer.observe.history_writer import HistoryWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.trackers.trackers import Trackers
from ddp_wire.contract import Env
from ddp_wire.text_events import text_of

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
        as_json: bool = False,
        history: HistoryWriter | None = None,
        trackers: Trackers | None = None,
    ) -> None:
        """Choose which events this rank prints.

        Args:
            ranks: This process's rank.
            attempt: Number of the attempt.
            all_ranks: Whether every rank prints the events whose values differ between ranks.
            as_json: Whether to print each event as a JSON object and not as text.
            history: File that stores the events.
            trackers: Experiment trackers that log the values of the events.
        """
        self._as_json = as_json
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
        sys.stdout.write(line if self._as_json else text_of(document) + "\n")
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


def prints_json(environ: Mapping[str, str], given: str | None = None) -> bool:
    """Return whether events are printed as JSON: by the setting, or else like the agent's lines."""
    return (given or environ.get(Env.LOG_FORMAT)) == "json"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
