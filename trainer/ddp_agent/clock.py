"""Sources of time for the agent, and the pace of its loop.

Process: agent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_SECONDS = 0.1
"""Pause between two passes of the agent's loop, in seconds."""


@dataclass
class Clock:
    """Sources of time. Tests replace them."""

    wall: Callable[[], float] = time.time
    """Unix seconds."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Ticker:
    """Pace of the agent's loop, with the time of its last pass."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._last = clock.monotonic()

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Record a pass of the loop, then pause; for 0 s if the pass has waited already."""
        self.record()
        self.clock.sleep(seconds)

    def record(self) -> None:
        """Record a pass of the loop that has waited for something else."""
        self._last = self.clock.monotonic()

    def idle_seconds(self) -> float:
        """Return the seconds since the last pass. Safe to call from any thread."""
        return self.clock.monotonic() - self._last
