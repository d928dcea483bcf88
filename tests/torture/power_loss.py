"""Apply a loss of power: what was not flushed to the volume is gone.

The worst case counts: a file without `fsync` after its last write has lost its second half, and an
entry is gone that no `fsync` of its folder has followed. A rename keeps its effect, because a
checkpoint that is lost as a whole is harmless, and one that appears without its content is not.
"""

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

_WRITES = frozenset({"write", "pwrite64", "writev", "copy_file_range", "sendfile", "fallocate"})
_SYNCS = frozenset({"fsync", "fdatasync"})
_ENTRIES = frozenset({"open", "openat", "mkdir", "mkdirat", "link", "linkat", "symlink"})

Inode = tuple[int, int]


@dataclass(slots=True)
class Unsynced:
    """Files and entries that a process has not flushed."""

    files: set[Inode] = field(default_factory=set)
    entries: set[tuple[Inode, str]] = field(default_factory=set)
    """Folder and name of each new entry."""

    def note(self, pid: int, name: str, arguments: tuple[int, ...], path: Path) -> None:
        """Note a call that is about to happen.

        Args:
            pid: The process.
            name: Name of the call.
            arguments: Arguments of the call.
            path: Path of the call.
        """
        if name in _WRITES or name in _SYNCS:
            descriptor = arguments[2 if name == "copy_file_range" else 0]
            with contextlib.suppress(OSError):
                inode = _inode(Path(f"/proc/{pid}/fd/{descriptor}").stat())
                if name in _WRITES:
                    self.files.add(inode)
                else:
                    self.files.discard(inode)
                    self.entries = {entry for entry in self.entries if entry[0] != inode}
        elif name in _ENTRIES and not os.path.lexists(path):
            with contextlib.suppress(OSError):
                self.entries.add((_inode(path.parent.stat()), path.name))

    def lose(self, home: Path) -> int:
        """Lose what was not flushed below a folder. Return the number of lost parts."""
        lost = 0
        for folder, folders, files in os.walk(home):
            own = _inode(Path(folder).stat())
            for name in [*folders, *files]:
                path = Path(folder) / name
                if (own, name) in self.entries:
                    _remove(path)
                    lost += 1
                elif name in files and _inode(path.lstat()) in self.files:
                    os.truncate(path, path.lstat().st_size // 2)
                    lost += 1
        return lost


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
