"""Measure throughput without evaluations and checkpoints, and the CPU time of this rank."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddp_wire.machine import throttled_seconds


class RateMeter:
    """Meter of the samples per second of training since the last reading."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._paused = 0.0
        self._samples = 0

    def add(self, samples: int) -> None:
        """Count samples of all ranks."""
        self._samples += samples

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time inside the context from the rate."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - start

    def read(self) -> float | None:
        """Return samples per second since the last reading, or None without samples. Then reset."""
        seconds = time.monotonic() - self._start - self._paused
        samples = self._samples
        self._start, self._paused, self._samples = time.monotonic(), 0.0, 0
        return samples / seconds if samples and seconds > 0 else None


class CpuMeter:
    """Meter of this rank's CPU time and of its container's throttled time.

    A throttled rank computes in bursts and makes the other ranks wait. Its workers and threads need
    more CPUs than its quota allows.
    """

    def __init__(self, throttled: Callable[[], float] = throttled_seconds) -> None:
        self._throttled = throttled
        self._last = self._now()

    def read(self) -> dict[str, float | None]:
        """Return the CPU use since the last reading, then reset the meter.

        Returns:
            `cpu_percent`, as a percentage of one CPU, and `throttled_seconds` of the container.
        """
        before, self._last = self._last, self._now()
        passed, used, throttled = (new - old for new, old in zip(self._last, before, strict=True))
        percent = 100 * used / passed if passed > 0 else None
        return {"cpu_percent": percent, "throttled_seconds": throttled}

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), self._throttled()
