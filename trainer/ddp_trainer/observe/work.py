"""Measure updates, and the rank's own time: the part without waits for other ranks.

A rank waits for other ranks in the backward pass and in the optimizer, so all updates last as long
as those of the slowest rank. Only the times of data and forward passes show which rank is slow.

On a busy machine, the time for which a rank waits for a core differs more between equal ranks than
the work of a slow rank does. So ranks that may share a machine do not count this wait.
"""

import time
from collections.abc import Callable

import torch

from ddp_trainer.ranks.agreement import NOT_MEASURED, RankSeconds
from ddp_wire.activity import Activity
from ddp_wire.machine import run_queue_seconds

WINDOW_UPDATES = 8
"""Minimum number of updates in one reading."""
_QUANTILE = 0.25
"""Quantile of the update times that counts as a typical update. A busy machine makes some updates
slower but none faster, so a low quantile is stable."""
ONE_NODE_RANKS = 8
"""Maximum number of ranks that usually run on one machine. In a larger gang, a rank on a busy
machine is slower than most, so its wait for a core counts."""


class WorkMeter:
    """Host time of each update, and of this rank's own part. It says nothing about a GPU."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        core_wait: Callable[[], float] | None = None,
    ) -> None:
        """Create a meter without readings.

        Args:
            clock: Clock of the host.
            core_wait: Seconds for which this thread has waited for a core. The rank's own time does
                not include these seconds. None means that it includes the wait.
        """
        self._clock = clock
        self._core_wait = core_wait or (lambda: 0.0)
        self._activity: Activity = Activity.STARTING
        self._ended = clock()
        self._since = self._own_clock()
        self._data = self._forward = 0.0
        self._update_seconds: list[float] = []
        """Seconds of each update since the last reading."""
        self._data_seconds: list[float] = []
        """Seconds that these updates waited for their batches."""
        self._forward_seconds: list[float] = []
        """Seconds of the forward passes of these updates."""

    def enter(self, activity: Activity) -> None:
        """Record the start of an activity."""
        now = self._own_clock()
        if self._activity is Activity.DATA:
            self._data += now - self._since
        elif self._activity is Activity.FORWARD:
            self._forward += now - self._since
        self._activity, self._since = activity, now

    def update(self) -> None:
        """Record the end of an update."""
        now = self._clock()
        self._update_seconds.append(now - self._ended)
        self._ended = now
        self._data_seconds.append(self._data)
        self._forward_seconds.append(self._forward)
        self._data = self._forward = 0.0

    def read(self) -> RankSeconds:
        """Return a typical update since the last reading; `NOT_MEASURED` after too few updates."""
        kinds = (self._update_seconds, self._data_seconds, self._forward_seconds)
        updates = len(self._update_seconds)
        if updates < WINDOW_UPDATES:
            return NOT_MEASURED
        found = RankSeconds(*(sorted(kind)[int(_QUANTILE * updates)] for kind in kinds))
        for kind in kinds:
            kind.clear()
        return found

    def _own_clock(self) -> float:
        return self._clock() - self._core_wait()


def make_work_meter(device: torch.device, world_size: int) -> WorkMeter:
    """Create the meter of a rank.

    Args:
        device: The rank's device. On a GPU, the clock of the device measures the rank's own time.
        world_size: Number of ranks.
    """
    compares = device.type == "cpu" and 1 < world_size <= ONE_NODE_RANKS
    return WorkMeter(core_wait=run_queue_seconds if compares else None)
