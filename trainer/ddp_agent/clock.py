"""Clocks of the agent, and the timing of its loop.

Process: agent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_SECONDS = 0.1
"""Seconds between two passes of the agent's loop."""


@dataclass
class Clock:
    """Functions that return the time. Tests replace them."""

    wall: Callable[[], float] = time.time
    """Function that returns Unix seconds."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Ticker:
    """Timing of the agent's loop, with the time of the loop's last pass."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._last = clock.monotonic()

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Record a pass of the loop, then pause, but not if the pass itself has waited."""
        self.record()
        self.clock.sleep(seconds)

    def record(self) -> None:
        """Record a pass of the loop that has waited for another event."""
        self._last = self.clock.monotonic()

    def idle_seconds(self) -> float:
        """Return the seconds since the loop's last pass. Safe to call from any thread."""
        return self.clock.monotonic() - self._last
