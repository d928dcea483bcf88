"""Advisory file locks: one builder per cached item, and one owner of the cluster."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.errors import HarnessError
from tests.harness.run import poll, print_line


class FileLock:
    """An advisory lock that the kernel releases when the process ends.

    Attributes:
        path: The lock's file; it contains the process id of the last exclusive holder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def exclusive(self, wait_s: float = 0) -> bool:
        """Take the lock exclusively. Return False if other processes kept it for `wait_s` seconds.

        In that case take a previously held shared lock again, because a failed upgrade loses it.
        """
        was_shared = self._descriptor is not None
        taken = self._take(fcntl.LOCK_EX, wait_s)
        if not taken and was_shared:
            self.shared()
        return taken

    def shared(self) -> bool:
        """Take or keep a shared lock. Return False if another process has it exclusively."""
        return self._take(fcntl.LOCK_SH, 0)

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> str:
        """Return the last holder as text for a message."""
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
        print_line(f"waiting for another process that builds {what} ({lock.holder()})")
        if not lock.exclusive(wait_s):
            raise HarnessError(
                f"Another process ({lock.holder()}) still builds {what} after {wait_s:.0f} s."
            )
    try:
        yield
    finally:
        lock.release()
