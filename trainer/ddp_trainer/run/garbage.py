"""Python's garbage collection, at the same update on all ranks.

A rank that collects while the others compute makes all of them wait. Left to itself, each rank
collects at another update, and so the run waits for each of them in turn.
"""

import gc
from types import TracebackType
from typing import Self

YOUNG = 1
"""Generations that a collection between updates looks at: it takes less than a millisecond."""


class Collector:
    """Keeps Python from collecting by itself inside, and collects when it is told to."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._was_enabled = gc.isenabled()

    def __enter__(self) -> Self:
        """Leaves what is there now out of all collections."""
        gc.freeze()
        gc.disable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves collection as it was."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def updated(self, step: int) -> None:
        """Collects if that is due.

        Args:
            step: Updates done, equal on all ranks.
        """
        if step % self._every_steps == 0:
            gc.collect(YOUNG)

    @staticmethod
    def paused() -> None:
        """Collects everything, in a pause of the training that all ranks make."""
        gc.collect()
