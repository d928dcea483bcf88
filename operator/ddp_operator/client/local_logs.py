"""Read the log of a local pod while it is written."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.1
_LONGEST_LINE = 1 << 20


class LogFile:
    """Whole lines of a log that grows, until the run is over."""

    def __init__(self, path: Path, is_over: Callable[[], bool]) -> None:
        self._path, self._is_over = path, is_over
        self._position = 0
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines that were not yielded before."""
        while not self._closed.is_set():
            over = self._is_over()  # Before the read, so that no line is missed.
            yield from self._next(whole=not over)
            if over:
                return
            self._closed.wait(_POLL_SECONDS)

    def _next(self, *, whole: bool) -> Iterator[bytes]:
        """Yield new lines. With `whole`, leave a line without its end for later."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._position)
            while line := file.readline(_LONGEST_LINE):
                if whole and not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                    return
                self._position += len(line)
                yield line

    def close(self) -> None:
        """End the iteration soon."""
        self._closed.set()
