"""Advisory locks on files: one builder per cached thing, one user per cluster."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.errors import HarnessError
from tests.harness.run import poll, say


class FileLock:
    """An advisory lock that ends with the process, however that ends.

    Attributes:
        path: The lock's file; it holds the process id of the last exclusive holder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def exclusive(self, wait_s: float = 0) -> bool:
        """Take the lock for this process alone; false when others kept it for `wait_s` seconds.

        What was held in common before is then held on: failing to upgrade would lose it.
        """
        in_common = self._descriptor is not None
        taken = self._take(fcntl.LOCK_EX, wait_s)
        if not taken and in_common:
            self.shared()
        return taken

    def shared(self) -> bool:
        """Take or keep the lock together with others; false when another has it alone."""
        return self._take(fcntl.LOCK_SH, 0)

    def release(self) -> None:
        """Give the lock back; fine when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Return who took the lock last, as text for a message."""
        try:
            return self.path.read_text(encoding="utf-8").strip() or "an unknown process"
        except OSError:
            return "an unknown process"

    def _take(self, operation: int, wait_s: float) -> bool:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        descriptor = self._descriptor

        def attempt() -> bool:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not poll(attempt, deadline_s=wait_s, interval_s=0.2):
            self.release()
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        return True


@contextmanager
def building(path: Path, what: str, wait_s: float = 3600) -> Iterator[None]:
    """Hold the lock at `path` for the block, waiting for another process that builds the same.

    Raises:
        HarnessError: The other process kept the lock for `wait_s` seconds.
    """
    lock = FileLock(path)
    if not lock.exclusive():
        say(f"waiting for another process that builds {what} ({lock.holder()})")
        if not lock.exclusive(wait_s):
            raise HarnessError(f"Another process ({lock.holder()}) still builds {what}.")
    try:
        yield
    finally:
        lock.release()
