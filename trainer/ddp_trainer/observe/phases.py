"""Duration of the phases of an update, measured at one update per progress line.

The other updates cost nothing extra. On CUDA the device clock is read together with the loss, when
the host waits for the device in any case.
"""

import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import torch


class PhaseTimer:
    """Seconds that the device spent in each named phase of the newest measured update."""

    def __init__(self, device: torch.device, every_steps: int, step: int) -> None:
        """Prepare to measure the update before each progress line.

        Args:
            device: The rank's device. On CUDA the device clock is used, not the host's.
            every_steps: Updates between two progress lines.
            step: Updates done.
        """
        self._on_gpu = device.type == "cuda"
        self._every_steps = every_steps
        self._starts: list[tuple[str, Any]] = []
        """Name and start of each phase, in order. A phase ends when the next one starts."""
        self.measured = False
        """Whether the current update is measured."""
        self.after_update(step)

    def after_update(self, step: int) -> None:
        """Measure the next update if it is the last one before a progress line.

        Args:
            step: Updates done.
        """
        self.measured = (step + 1) % self._every_steps == 0
        if self.measured:
            self._starts = []

    def enter(self, name: str) -> None:
        """Start the named phase, and end the one before it. A phase may have several parts."""
        self._starts.append((name, self._mark()))

    def read(self) -> dict[str, float]:
        """Return seconds by phase, after waiting for the device; empty before any measurement.

        The phase under way is left out.
        """
        seconds = defaultdict[str, float](float)
        for (name, start), (_, end) in pairwise(self._starts):
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
