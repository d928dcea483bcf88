"""Measure how a rank uses its time: updates, waits for data, evaluations and checkpoints."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ddp_trainer.observe.wait_clock import WaitClock
from ddp_wire.families import UPDATE_SECONDS_BUCKETS
from ddp_wire.messages import RankTimes, TrainingTimes


class TimeMeter:
    """Meter of this rank's times since the start of the attempt.

    An update lasts from the end of the previous one to its own end, by the host's clock, without
    evaluations and checkpoints in between. On a GPU the times of single updates are inexact,
    because the host runs ahead of the device, but their sum is exact.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.data_wait = WaitClock()
        self.phase_seconds: dict[str, float] = {}
        """Seconds of each phase of the newest measured update."""
        self._clock = clock
        self._read_count, self._read_seconds = 0, 0.0
        self._update_ended: float | None = None
        self._apart = 0.0
        self._counts = [0] * (len(UPDATE_SECONDS_BUCKETS) + 1)
        self._update_seconds = 0.0
        self._seconds = {"checkpoint": 0.0, "evaluation": 0.0}
        self._before_first = (0.0, 0.0, 0.0)
        """Seconds of data waits, checkpoints and evaluations before the end of the first update."""

    def update(self) -> None:
        """Record the end of an update. The first one of an attempt only starts the measurement."""
        now = self._clock()
        if self._update_ended is not None:
            seconds = now - self._update_ended - self._apart
            self._counts[bisect_left(UPDATE_SECONDS_BUCKETS, seconds)] += 1
            self._update_seconds += seconds
        else:
            self._before_first = self._other_seconds()
        self._update_ended, self._apart = now, 0.0

    @contextmanager
    def apart(self, name: str) -> Iterator[None]:
        """Count the time of the context as a `checkpoint` or an `evaluation`, not as an update."""
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self._seconds[name] += seconds
            self._apart += seconds

    def since_first_update(self) -> TrainingTimes | None:
        """Return the times since the first update, without an unfinished update.

        Return None before the first update has ended.
        """
        if self._update_ended is None:
            return None
        found = zip(self._other_seconds(), self._before_first, strict=True)
        data_wait, checkpoint, evaluation = (now - before for now, before in found)
        # A wait of an update that is under way counts before the update does.
        data_wait = min(data_wait, self._update_seconds)
        return TrainingTimes(
            training_seconds=self._update_seconds + evaluation - data_wait,
            data_wait_seconds=data_wait,
            checkpoint_seconds=checkpoint,
        )

    def _other_seconds(self) -> tuple[float, float, float]:
        seconds = self._seconds
        return self.data_wait.total, seconds["checkpoint"], seconds["evaluation"]

    def read(self) -> RankTimes:
        """Return the times since the start of the attempt."""
        return RankTimes(
            updates=list(self._counts),
            update_seconds=self._update_seconds,
            data_wait_seconds=self.data_wait.total,
            checkpoint_seconds=self._seconds["checkpoint"],
            evaluation_seconds=self._seconds["evaluation"],
            cpu_seconds=time.process_time(),
            phase_seconds=self.phase_seconds,
            memory_bytes=torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None,
        )

    def mean_update(self) -> float:
        """Return the mean seconds of the updates since the last call; 0 without an update."""
        count, seconds = sum(self._counts), self._update_seconds
        updates, passed = count - self._read_count, seconds - self._read_seconds
        self._read_count, self._read_seconds = count, seconds
        return passed / updates if updates else 0.0
