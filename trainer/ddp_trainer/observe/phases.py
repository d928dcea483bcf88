"""Duration of the phases of an update, measured at the first update after each exchange.

The other updates cost nothing extra. On CUDA the device clock is read together with the loss, when
the host waits for the device in any case.

The first update is measured because the exchange has emptied the queues of all devices together.
Later, the device of a fast rank is behind its host, since it waits for the slowest rank. It then
seems to need no time for what only the host does.
"""

import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import torch

PHASES = frozenset({"data", "forward", "backward", "optimizer"})
"""Phases of an update."""


class PhaseTimer:
    """Seconds that the device spent in each named phase of the newest measured update."""

    def __init__(self, device: torch.device) -> None:
        """Prepare to measure.

        Args:
            device: The rank's device. On CUDA the device clock is used, not the host's.
        """
        self._on_gpu = device.type == "cuda"
        self._starts: list[tuple[str, Any]] = []
        """Name and start of each phase, in order. A phase ends when the next one starts."""
        self._is_due = False
        """Whether the next update is measured."""
        self._measures = False

    def enter(self, name: str) -> None:
        """Start the named phase, and end the one before it. A phase may have several parts.

        Names other than `PHASES` only end a phase. After `exchange`, the next `data` starts the
        measured update.
        """
        if self._is_due and name == "data":
            self._is_due, self._measures, self._starts = False, True, []
        if self._measures:
            self._starts.append((name, self._mark()))
        self._is_due |= name == "exchange"

    def after_update(self) -> None:
        """End the measured update."""
        if self._measures:
            self._starts.append(("", self._mark()))
        self._measures = False

    def read(self) -> dict[str, float]:
        """Return seconds by phase, after waiting for the device; empty before any measurement.

        The phase under way is left out.
        """
        seconds = defaultdict[str, float](float)
        for (name, start), (_, end) in pairwise(self._starts):
            if name in PHASES:
                seconds[name] += self._between(start, end)
        return dict(seconds)

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        if not self._on_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000
