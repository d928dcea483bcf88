"""Reuse the memory of old parts of records, so that a snapshot needs no new memory.

A slot is a folder whose files have the size of a part (`checkpoint.records`). It is either spare,
or a complete part of a record:

    step-spare-common-0              a spare slot for the common part
    step-spare-rank-3-1              a spare slot for the part of rank 3
    step-00000120.attempt-2.rank-3   a complete part, whose folder becomes a slot again later

Its writer makes the folder spare by a rename, overwrites the files in place, writes the manifest
last, and gives the folder its final name. So a part is never half new, and a killed writer leaves
only a spare slot. Each kind of part needs two slots: one keeps the newest part while the other one
is written. The writer locks the folder, so that a rank that must end takes no slot in use.

The memory of a slot is allocated once. Memory of files under /dev/shm counts as the container's,
and the kernel ends processes if it runs out. So it is allocated in pieces, after a check of each.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.division import files_of
from ddp_trainer.checkpoint.format import crc32_of, json_bytes, manifest_of
from ddp_trainer.checkpoint.records import Part, PartName
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.checkpoint.store.base import Entry
from ddp_trainer.checkpoint.store.base import Part as Piece
from ddp_trainer.checkpoint.store.directory import MANIFEST, PendingFolder
from ddp_trainer.checkpoint.tensor_file import file_size
from ddp_trainer.checkpoint.writer import write_files
from ddp_wire.records import PART_FILE

COUNT = 2
"""Number of slots per kind of part."""
_SPARE = "step-spare-"
_PIECE = 16 << 20
"""Bytes that are allocated at once."""


class MemorySlot(PendingFolder):
    """A locked spare slot. Its checksums are computed when it is published."""

    def __init__(self, folder: Path, lock: int) -> None:
        super().__init__(folder, reuse=True)
        self._lock = lock
        self._entries: dict[str, Entry] = {}

    def put(self, file: str, parts: Iterable[Piece]) -> Entry:
        """Write one file over an old one, without a checksum."""
        size = 0
        with self._opened(self.folder / file) as opened:
            for part in parts:
                opened.write(part)
                size += len(part)
            opened.truncate()
        return {"bytes": size, "crc32": ""}

    def fill(self, part: Part, checkpoint: Checkpoint) -> None:
        """Copy a part into the slot.

        Raises:
            OSError: If the slot was deleted, or memory is missing for a part that has grown.
        """
        for file in (MANIFEST, PART_FILE):
            (self.folder / file).unlink(missing_ok=True)
        described = self.put(PART_FILE, [json_bytes(part.model_dump())])
        self._entries = {PART_FILE: described} | write_files(self, checkpoint)
        for path in list(self.folder.iterdir()):
            if path.name not in self._entries:
                path.unlink()

    def publish(self, part: Part) -> None:
        """Add checksums to the filled slot, and make it a complete part.

        Raises:
            OSError: If the slot was deleted, or the same part exists.
        """
        for file, entry in self._entries.items():
            entry["crc32"] = crc32_of(self.folder / file)
        super().put(MANIFEST, [json_bytes(manifest_of(part.record, self._entries))])
        self.folder.rename(self.folder.parent / str(part.name))

    def release(self) -> None:
        """Unlock the slot."""
        os.close(self._lock)


def kind_of(name: PartName) -> str:
    """Return the kind of a part: parts of the same kind have the same size."""
    return "common" if name.rank is None else f"rank-{name.rank}"


def size_of(snapshot: Snapshot) -> int:
    """Return the bytes of a slot for a part."""
    return sum(map(file_size, files_of(snapshot).values()))


def missing(folder: Path, name: PartName) -> int:
    """Return the number of slots to allocate for a kind of part."""
    return max(0, COUNT - len(_spares(folder, name)) - len(_complete(folder, name)))


def allocate(folder: Path, name: PartName, snapshot: Snapshot, check: Callable[[int], None]) -> int:
    """Allocate the missing slots for a kind of part, and return their number.

    Args:
        folder: Folder of the node's records.
        name: A part of this kind.
        snapshot: Content with the sizes of all later parts.
        check: Function that is called before each piece is allocated, with its bytes. It raises an
            error if there is too little memory.

    Raises:
        OSError: If memory is missing. After any error the slots of this kind are deleted.
    """
    count = missing(folder, name)
    try:
        for _ in range(count):
            path = _free_name(folder, name)
            path.mkdir()
            for file, tensors in files_of(snapshot).items():
                _allocate(path / file, file_size(tensors), check)
    except BaseException:
        for path in _spares(folder, name):
            shutil.rmtree(path, ignore_errors=True)
        raise
    return count


def _allocate(path: Path, size: int, check: Callable[[int], None]) -> None:
    with path.open("xb") as file:
        for begin in range(0, size, _PIECE):
            length = min(_PIECE, size - begin)
            check(length)
            os.posix_fallocate(file.fileno(), begin, length)


def acquire(folder: Path, name: PartName, *, complete: bool = True) -> MemorySlot | None:
    """Return a slot for a part, which must be released. Return None if there is none.

    Args:
        folder: Folder of the node's records.
        name: A part of this kind.
        complete: Whether to take the oldest complete part if there is no spare slot, and a newer
            complete part.
    """
    for path in _spares(folder, name):
        if (lock := _locked(path)) is not None:
            return MemorySlot(path, lock)
    found = _complete(folder, name)
    if not complete or len(found) < COUNT:
        return None
    path = _free_name(folder, name)
    try:
        (folder / str(found[0])).rename(path)
    except OSError:
        return None
    lock = _locked(path)
    return None if lock is None else MemorySlot(path, lock)


def lend(folder: Path, name: PartName, target: Path, *, complete: bool) -> None:
    """Move the files of a slot into an empty folder, so that a survivor's part uses their memory.

    Without a slot the folder stays empty.

    Args:
        folder: Folder of the node's records.
        name: The survivor's part.
        target: The empty folder.
        complete: Whether to take the oldest complete part if there is no spare slot.
    """
    slot = acquire(folder, name, complete=complete)
    if slot is None:
        return
    with contextlib.suppress(OSError):
        for path in list(slot.folder.iterdir()):
            if path.name in {MANIFEST, PART_FILE}:
                path.unlink()
            else:
                path.rename(target / path.name)
        slot.folder.rmdir()
    slot.release()


def discard(folder: Path) -> None:
    """Delete all slots of this node except for the newest complete part of each kind.

    A memory file system that fails costs the copies, and never the run.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.glob(f"{_SPARE}*")):
            shutil.rmtree(path, ignore_errors=True)
        names = _parts_in(folder)
        newest = max((name.record for name in names), default=None)
        records.remove(folder / str(name) for name in names if name.record != newest)


def _locked(path: Path) -> int | None:
    """Lock a slot until the descriptor is closed. Return None if another process uses it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _spares(folder: Path, name: PartName) -> list[Path]:
    return sorted(folder.glob(f"{_SPARE}{kind_of(name)}-*"))


def _complete(folder: Path, name: PartName) -> list[PartName]:
    """Return the complete parts of the same kind, oldest first."""
    alike = [other for other in _parts_in(folder) if other.rank == name.rank]
    return sorted(alike, key=lambda other: (other.record.attempt, other.record.step))


def _free_name(folder: Path, name: PartName) -> Path:
    paths = (folder / f"{_SPARE}{kind_of(name)}-{number}" for number in range(2 * COUNT))
    return next(path for path in paths if not os.path.lexists(path))


def _parts_in(folder: Path) -> list[PartName]:
    return [name for path in folder.iterdir() if (name := PartName.parse(path.name))]
