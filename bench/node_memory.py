"""Sample the memory of all processes of a run on this machine, and of its shared memory."""

import os
import threading
from pathlib import Path
from typing import Self

from ddp_wire.processes import descendants

_SECONDS = 0.005


def used(parent: int, shared: Path) -> int:
    """Return the bytes that the descendants of a process and a folder in memory use.

    Mapped files count only in the folder, because their pages in memory belong to it.
    """
    total = 0
    for pid in descendants(parent):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
    for folder, _, files in os.walk(shared):
        for name in files:
            try:
                total += (Path(folder) / name).stat().st_blocks * 512
            except OSError:
                continue
    return total


class Peak:
    """Context that samples the used memory, and keeps the highest value above that at its start."""

    def __init__(self, parent: int, shared: Path) -> None:
        self._parent, self._shared = parent, shared
        self.extra = 0
        """Highest use above the use at the start, in bytes."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._before = used(self._parent, self._shared)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_SECONDS):
            self.extra = max(self.extra, used(self._parent, self._shared) - self._before)
