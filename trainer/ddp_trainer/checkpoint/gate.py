"""Say when the state of a run is whole, so that a rank can write it on its way out.

A rank that loses a peer, or that must end for a new attempt, may still hold everything: an update
changes weights and optimizer only after its last collective. The loop opens the gate in each part
of its work that changes no state, such as the passes and the waits for other ranks, and closes it
for all other parts. The state may be read

- by another thread while it holds the open gate, even if the main thread waits in a collective;
- by the main thread after an error that left an open gate. The gate remembers this error.

Opening and closing cost about a microsecond.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Gate:
    """Lock on the state of a run, which the main thread holds while it changes the state."""

    def __init__(self) -> None:
        """Close the gate. Call this in the main thread."""
        self._lock = threading.Lock()
        self._lock.acquire()
        self._depth = 0
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        """Open the gate. Contexts may be nested."""
        self._depth += 1
        if self._depth == 1:
            self._error = None
            self._lock.release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the gate, and wait for a thread that reads the state."""
        self._depth -= 1
        if self._depth == 0:
            self._lock.acquire()
            self._error = error

    def during(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items. The gate is open while each of them is prepared."""
        iterator = iter(items)
        while True:
            with self:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def left_open_by(self, error: BaseException) -> bool:
        """Return whether an error, or its cause, ended the last part that changes no state."""
        cause: BaseException | None = error
        while cause is not None:
            if cause is self._error:
                return True
            cause = cause.__cause__ or cause.__context__
        return False

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[bool]:
        """Hold the open gate in another thread. Yield whether it opened in time.

        Args:
            seconds: Maximum wait until the gate opens.
        """
        acquired = self._lock.acquire(timeout=seconds)
        try:
            yield acquired
        finally:
            if acquired:
                self._lock.release()
