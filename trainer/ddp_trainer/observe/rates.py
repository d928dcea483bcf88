"""Throughput, without the time of evaluations and checkpoints."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class RateMeter:
    """Samples per second of training since the last reading."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._paused = 0.0
        self._samples = 0

    def add(self, samples: int) -> None:
        """Counts samples, over all ranks."""
        self._samples += samples

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the time inside out of the rate."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - begun

    def read(self) -> float | None:
        """Samples per second since the last reading, or nothing if there were none; starts anew."""
        seconds = time.monotonic() - self._begun - self._paused
        samples = self._samples
        self._begun, self._paused, self._samples = time.monotonic(), 0.0, 0
        return samples / seconds if samples and seconds > 0 else None
