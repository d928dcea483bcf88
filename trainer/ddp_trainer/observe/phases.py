"""Measure the duration of an update's phases at the first update after each exchange.

All other updates have no extra cost. On CUDA the device clock is read together with the loss, when
the host must wait for the device.

The first update is measured because the exchange has emptied the queues of all devices. Later, the
device of a fast rank is behind its host, because it waits for the slowest rank. Work of the host
alone would then seem to take no time.
"""

import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import torch

PHASES = frozenset({"data", "forward", "backward", "optimizer"})
"""Names of the phases of an update."""


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
        """Start the named phase, and end the previous one. A phase may occur several times.

        Names other than `PHASES` only end a phase. After `exchange`, the next `data` starts the
        measured update.
        """
        if self._is_due and name == "data":
            self._is_due, self._measures, self._starts = False, True, []
        if self._measures:
            self._starts.append((name, self._mark()))
        self._is_due |= name == "exchange"

    def after_update(self) -> None:
        """End the update that is being measured."""
        if self._measures:
            self._starts.append(("", self._mark()))
        self._measures = False

    def read(self) -> dict[str, float]:
        """Return seconds by phase, after waiting for the device; empty before any measurement.

        The result does not include the current phase.
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
