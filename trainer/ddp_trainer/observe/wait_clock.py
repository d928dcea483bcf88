"""Measure the time that a rank waits for its data."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class WaitClock:
    """Clock that counts the seconds for which this rank has waited for its data."""

    def __init__(self) -> None:
        self.total = 0.0
        """Seconds since the creation of the clock."""
        self._read = 0.0

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and measure the time until each item arrives."""
        iterator = iter(items)
        while True:
            start = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.total += time.monotonic() - start
            yield item

    def read(self) -> float:
        """Return the seconds since the last reading."""
        seconds, self._read = self.total - self._read, self.total
        return seconds
