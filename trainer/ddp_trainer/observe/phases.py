"""Duration of the phases of an update, measured at one update per progress line.

The other updates cost nothing extra. On CUDA the device clock is read together with the loss, when
the host waits for the device in any case.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
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
        self._spans: list[tuple[str, Any, Any]] = []
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
            self._spans = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Measure the context as part of the named phase. A phase may have several parts."""
        start = self._mark()
        try:
            yield
        finally:
            self._spans.append((name, start, self._mark()))

    def read(self) -> dict[str, float]:
        """Return seconds by phase, after waiting for the device; empty before any measurement."""
        seconds = defaultdict[str, float](float)
        for name, start, end in self._spans:
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
