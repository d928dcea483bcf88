"""Ranks that wait for their data too long, told once the ranks have agreed on who they are."""

import time

from ddp_trainer.observe.wait_clock import WaitClock
from ddp_trainer.ranks.agreement import NOT_STARVING, Starving

WINDOW_SECONDS = 30.0
"""Time that is judged as one: shorter ones would tell of every hiccup."""
LARGEST_SHARE = 0.1
"""Part of the time that a rank may wait for data without a word."""
_STARTS = 2
"""Meetings of the ranks until the first batch is there, which comes late: its workers start."""


class DataWatch:
    """One rank's share of waiting in the present window, and what to say when it ends."""

    def __init__(self, clock: WaitClock, rank: int, world_size: int) -> None:
        """The first window begins.

        Args:
            clock: Counts this rank's wait.
            rank: This rank's number.
            world_size: How many there are.
        """
        self._clock = clock
        self._rank = rank
        self._world_size = world_size
        self._starts = _STARTS
        self._told = False
        self._begin()

    def mine(self) -> Starving:
        """This rank's part of the sum over ranks."""
        passed = time.monotonic() - self._begun
        share = (self._clock.total - self._waited) / passed if passed > 0 else 0.0
        return Starving(1.0, self._rank, share) if share > LARGEST_SHARE else NOT_STARVING

    def judge(self, everyone: Starving, seconds: float) -> str | None:
        """One sentence when ranks begin to starve; again only after a window in which none did.

        Args:
            everyone: The sum over ranks.
            seconds: Time since this was asked last, as all ranks agreed on it.
        """
        if self._starts:
            self._starts -= 1
            self._begin()
            return None
        self._agreed_seconds += seconds
        if self._agreed_seconds < WINDOW_SECONDS:
            return None
        self._begin()
        news = bool(everyone.ranks) and not self._told
        self._told = bool(everyone.ranks)
        return self._sentence(everyone) if news else None

    def _sentence(self, everyone: Starving) -> str:
        count = round(everyone.ranks)
        one = count == 1
        who = f"rank {everyone.numbers:.0f}" if one else f"{count} of {self._world_size} ranks"
        share = f"{everyone.shares / count:.0%} of the time"
        return (
            f"{who} {'waits' if one else 'wait'} for data {share}, and all ranks with"
            f" {'it' if one else 'them'}: raise data.workers, or make samples cheaper to read"
        )

    def _begin(self) -> None:
        self._begun, self._waited = time.monotonic(), self._clock.total
        self._agreed_seconds = 0.0
