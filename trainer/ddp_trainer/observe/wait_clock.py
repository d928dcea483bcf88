"""The time that a rank waits for its data."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class WaitClock:
    """Seconds that this rank has waited for its data."""

    def __init__(self) -> None:
        self.total = 0.0
        """Since the clock was made."""
        self._read = 0.0

    def waited_for(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each is there is counted."""
        iterator = iter(items)
        while True:
            begun = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.total += time.monotonic() - begun
            yield item

    def read(self) -> float:
        """Seconds since the last reading."""
        seconds, self._read = self.total - self._read, self.total
        return seconds
