"""How long the parts of an update take, measured at one update per progress line.

That one update is measured at the others' expense of nothing: the clock of a CUDA device is read
with the loss, when the host waits for the device anyway.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Phases:
    """Seconds that the device spent in each named part of the newest update that was measured."""

    def __init__(self, device: torch.device, every_steps: int, step: int) -> None:
        """Measures every so many updates.

        Args:
            device: The rank's; on CUDA its own clock counts, not the host's.
            every_steps: Updates between two progress lines.
            step: Updates done.
        """
        self._on_gpu = device.type == "cuda"
        self._every_steps = every_steps
        self._spans: list[tuple[str, Any, Any]] = []
        self.measured = False
        """Whether the update that is being made is measured."""
        self.updated(step)

    def updated(self, step: int) -> None:
        """Chooses whether the next update is measured: the last one before a progress line is.

        Args:
            step: Updates done.
        """
        self.measured = (step + 1) % self._every_steps == 0
        if self.measured:
            self._spans = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A part of the update, which may have several of the name."""
        begun = self._mark()
        try:
            yield
        finally:
            self._spans.append((name, begun, self._mark()))

    def read(self) -> dict[str, float]:
        """Seconds by name; empty when no update was measured yet. Waits for the device."""
        seconds = defaultdict[str, float](float)
        for name, begun, ended in self._spans:
            seconds[name] += self._between(begun, ended)
        return dict(seconds)

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        if not self._on_gpu:
            return float(ended - begun)
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000
