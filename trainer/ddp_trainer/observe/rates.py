"""Throughput, without the time of evaluations and checkpoints; and what it costs in CPU time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddp_wire.machine import throttled_seconds


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


class CpuMeter:
    """CPU time of this rank, and how long its container had to do without, since the last reading.

    A rank that is throttled computes in bursts and makes the others wait: it has more workers and
    threads than its CPU quota.
    """

    def __init__(self, throttled: Callable[[], float] = throttled_seconds) -> None:
        self._throttled = throttled
        self._seen = self._now()

    def read(self) -> dict[str, float | None]:
        """`cpu_percent`, of one CPU, and `throttled_seconds`, of the container; starts anew."""
        before, self._seen = self._seen, self._now()
        passed, used, stood = (new - old for new, old in zip(self._seen, before, strict=True))
        percent = 100 * used / passed if passed > 0 else None
        return {"cpu_percent": percent, "throttled_seconds": stood}

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), self._throttled()
