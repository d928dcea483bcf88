"""Detect ranks that wait too long for their data."""

import time

from ddp_trainer.observe.wait_clock import WaitClock
from ddp_trainer.ranks.agreement import NOT_STARVING, DataStarvation

WINDOW_SECONDS = 30.0
"""Length of an observation window in seconds. Shorter windows would report every short delay."""
LARGEST_SHARE = 0.1
"""Maximum share of its time, from 0 to 1, that a rank may wait for data without a warning."""
_START_EXCHANGES = 2
"""Number of exchanges until the first batch has arrived. It is late, because data workers start."""


class DataWaitMonitor:
    """Monitor of this rank's waits for data, which warns at the end of a window."""

    def __init__(self, clock: WaitClock, rank: int, world_size: int) -> None:
        """Start the first window.

        Args:
            clock: Clock that measures this rank's waits for data.
            rank: This rank's number.
            world_size: Number of ranks.
        """
        self._clock = clock
        self._rank = rank
        self._world_size = world_size
        self._start_exchanges = _START_EXCHANGES
        self._reported = False
        self._start_window()

    def own_starvation(self) -> DataStarvation:
        """Return this rank's values for the sums over starving ranks."""
        passed = time.monotonic() - self._window_start
        share = (self._clock.total - self._waited_before) / passed if passed > 0 else 0.0
        return DataStarvation(1.0, self._rank, share) if share > LARGEST_SHARE else NOT_STARVING

    def assess(self, everyone: DataStarvation, seconds: float) -> str | None:
        """Return a warning when ranks begin to wait too long for data, or None.

        The next warning follows only after a window in which no rank starved.

        Args:
            everyone: Sums over all ranks.
            seconds: Time since the last call, equal on all ranks.
        """
        if self._start_exchanges:
            self._start_exchanges -= 1
            self._start_window()
            return None
        self._window_seconds += seconds
        if self._window_seconds < WINDOW_SECONDS:
            return None
        self._start_window()
        is_new = bool(everyone.rank_count) and not self._reported
        self._reported = bool(everyone.rank_count)
        return self._sentence(everyone) if is_new else None

    def _sentence(self, everyone: DataStarvation) -> str:
        count = round(everyone.rank_count)
        one = count == 1
        who = f"rank {everyone.rank_sum:.0f}" if one else f"{count} of {self._world_size} ranks"
        share = f"{everyone.share_sum / count:.0%} of the time"
        return (
            f"{who} {'waits' if one else 'wait'} for data {share}, and all other ranks wait for"
            f" {'it' if one else 'them'}: raise data.workers, or make samples cheaper to read"
        )

    def _start_window(self) -> None:
        self._window_start, self._waited_before = time.monotonic(), self._clock.total
        self._window_seconds = 0.0
