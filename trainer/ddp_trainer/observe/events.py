"""What a run says: one JSON object per line on standard output, from global rank 0."""

import json
import math
import sys
import time
from typing import Any

from ddp_trainer.ranks.environment import Ranks

DIGITS = 6
"""Significant digits of numbers in events."""
_OWN = frozenset({"progress"})
"""Events of which each rank has figures of its own."""


class EventLog:
    """Prints events; silent on every rank but the first, if not told otherwise."""

    def __init__(self, ranks: Ranks, attempt: int, *, all_ranks: bool = False) -> None:
        """Nothing is printed yet.

        Args:
            ranks: This process's place.
            attempt: Number of the attempt.
            all_ranks: Whether events of which each rank has figures of its own come from each.
        """
        self._ranks = ranks
        self._attempt = attempt
        self._told = None if ranks.is_first else _OWN if all_ranks else frozenset[str]()

    def emit(self, event: str, **fields: Any) -> None:
        """Prints one event.

        Args:
            event: Its kind: start, resume, complete, progress, eval, checkpoint, note, warning,
                stop or summary.
            fields: JSON values; numbers that are not finite become null, as JSON has none.
        """
        if self._told is not None and event not in self._told:
            return
        head = {"event": event, "time": round(time.time(), 3), "rank": self._ranks.rank}
        line = head | {"attempt": self._attempt} | _rounded(fields)
        sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
        sys.stdout.flush()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
