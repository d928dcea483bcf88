"""Watch the free memory of a node, and give that of the snapshots back before it runs out.

The kernel ends a process of the container when memory runs out, even if the snapshots' memory was
free when it was allocated: a later evaluation or a larger batch may need it. So a thread looks
every few milliseconds, and deletes the slots if little is left. Looking costs about ten
microseconds.
"""

import contextlib
import os
import threading
from pathlib import Path

from ddp_trainer.checkpoint import records, room, slots
from ddp_wire.machine import memory_limit

LOW_BYTES = 64 << 20
"""Free memory in bytes below which the slots are deleted."""
_POLL_SECONDS = 0.02
_MOST_DIGITS = 32


class MemoryWatch:
    """Thread that deletes the snapshots of this node when memory is low."""

    def __init__(self, folder: Path) -> None:
        """Begin to watch.

        Args:
            folder: Folder of the node's records.
        """
        self.sentence: str | None = None
        """Reason why the slots were deleted. None while they exist."""
        self._folder = folder
        self._ended = threading.Event()
        self._limit, self._usage = _usage_file()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the watch."""
        self._ended.set()
        self._thread.join()
        if self._usage is not None:
            os.close(self._usage)
            self._usage = None

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # The folder was deleted.
            while not self._ended.wait(_POLL_SECONDS):
                if self._may_be_low() and (reason := room.shortage(self._folder, 0, LOW_BYTES)):
                    self._free(reason)
                    return

    def _may_be_low(self) -> bool:
        """Return whether memory is low, counting page cache that the kernel can drop as used."""
        status = os.statvfs(self._folder)
        if status.f_bavail * status.f_frsize < LOW_BYTES:
            return True
        if self._usage is None:
            return False
        return self._limit - int(os.pread(self._usage, _MOST_DIGITS, 0)) < LOW_BYTES

    def _free(self, reason: str) -> None:
        """Delete the slots, and the newest record only if that is not enough."""
        with contextlib.suppress(OSError):
            slots.discard(self._folder)
        if room.shortage(self._folder, 0, LOW_BYTES):
            records.clear(self._folder)
        self.sentence = f"memory runs short: {reason}"


def _usage_file() -> tuple[int, int | None]:
    """Return the memory limit of the container, and a descriptor of the file with its use."""
    found = memory_limit()
    if found is not None:
        for name in ("memory.current", "memory.usage_in_bytes"):
            with contextlib.suppress(OSError):
                return found[0], os.open(found[1].with_name(name), os.O_RDONLY | os.O_CLOEXEC)
    return 0, None
