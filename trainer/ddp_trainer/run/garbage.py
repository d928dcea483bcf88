"""Run Python's garbage collection at the same update on all ranks.

A rank that collects garbage makes all other ranks wait. Without coordination each rank collects at
a different update, so the run waits once for each rank.
"""

import gc
from types import TracebackType
from typing import Self

YOUNG_GENERATIONS = 1
"""Highest generation that is collected between updates, which takes less than a millisecond."""


class Collector:
    """Context in which Python collects garbage only at updates that all ranks share."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._was_enabled = gc.isenabled()

    def __enter__(self) -> Self:
        """Exclude all current objects from collection, and disable automatic collection."""
        gc.freeze()
        gc.disable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore collection as it was before the context."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def after_update(self, step: int) -> None:
        """Collect garbage if it is due.

        Args:
            step: Number of completed updates, equal on all ranks.
        """
        if step % self._every_steps == 0:
            gc.collect(YOUNG_GENERATIONS)

    @staticmethod
    def collect_all() -> None:
        """Collect all generations. Call this method when training pauses on all ranks."""
        gc.collect()
