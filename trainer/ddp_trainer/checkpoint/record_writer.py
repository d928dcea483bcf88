"""Write parts of records (`checkpoint.records`), without using more memory than there is.

Several ranks may write at the same time. A rank first announces the size of its part, so that the
check of the free memory also counts what the other ranks have yet to write.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ddp_trainer.checkpoint import records, slots
from ddp_trainer.checkpoint.format import PENDING, json_bytes, manifest_of
from ddp_trainer.checkpoint.records import Part
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.store.base import Entry, Writable
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.checkpoint.writer import write_files
from ddp_wire.machine import memory_bytes, memory_limit
from ddp_wire.processes import is_running
from ddp_wire.records import PART_FILE

RESERVE_BYTES = 64 << 20
"""Memory that a record must leave free, in bytes."""
_POLL_SECONDS = 0.01
_NAMELESS_SECONDS = 1.0
"""Age in seconds from which a pending part without an owner is abandoned."""
_OWNER = ".owner"
_BLOCK = 512
"""Bytes of a block in the size of a file that is allocated."""


class NoRoomError(Exception):
    """Error for a record that does not fit into the memory of the node. Its text says why."""


def write(folder: Path, part: Part, checkpoint: Checkpoint, beside: int = 0) -> bool:
    """Write a part that is a checkpoint, as `write_part` does."""
    size = checkpoint.snapshot.nbytes()
    return write_part(
        folder, part, size, lambda pending: write_files(pending, checkpoint), beside=beside
    )


def write_part(
    folder: Path,
    part: Part,
    size: int,
    fill: Callable[[Writable], dict[str, Entry]],
    *,
    beside: int = 0,
) -> bool:
    """Write a part, unless another rank of this node has written it or writes it now.

    In the second case wait for the other rank, and take its place if it ends before. A whole common
    part replaces all older records. Other parts leave them, because the new record may not become
    whole.

    Args:
        folder: Folder of the node's records. It must exist.
        part: Description of the part.
        size: Size of its content in bytes.
        fill: Function that writes all files but the description, and returns their entries.
        beside: Bytes of host memory that this node may need at the same time, for example to save
            a checkpoint.

    Returns:
        Whether this call has written the part.

    Raises:
        NoRoomError: If the part does not fit into memory.
        InputError: If checkpoints do not support the type of a tensor.
        OSError: If the folder fails. After an error nothing of the part is left.
    """
    pending = folder / f"{part.name}{PENDING}"
    while not records.is_covered(folder, part.name):
        try:
            pending.mkdir()
        except FileExistsError:
            if _is_abandoned(pending):
                _discard(pending)
            time.sleep(_POLL_SECONDS)
            continue
        try:
            _owner_file(pending).write_text(f"{os.getpid()} {size}")
            slots.lend(folder, part.name, pending, complete=part.division == "whole")
            _check_room(folder, pending, size, beside)
            files = PendingFolder(pending, reuse=True)
            described = files.put(PART_FILE, [json_bytes(part.model_dump())])
            entries = {PART_FILE: described} | fill(files)
            files.seal(json_bytes(manifest_of(part.record, entries)))
            pending.rename(folder / str(part.name))
        except BaseException:
            _discard(pending)
            raise
        _discard(pending)
        if part.division != "all" and part.rank is None:
            records.remove(records.others_of(folder, part.record))
        return True
    return False


def _discard(pending: Path) -> None:
    """Delete a pending part, and the file about its owner."""
    shutil.rmtree(pending, ignore_errors=True)
    _owner_file(pending).unlink(missing_ok=True)


def _owner_file(pending: Path) -> Path:
    return pending.with_name(pending.name + _OWNER)


def _owner(pending: Path) -> tuple[int, int] | None:
    """Return the process that writes a part, and the bytes of the part; None if unknown."""
    try:
        process, _, size = _owner_file(pending).read_text().partition(" ")
        return int(process), int(size or 0)
    except (OSError, ValueError):
        return None


def _is_abandoned(pending: Path) -> bool:
    """Return whether the process that began to write a part has ended."""
    owner = _owner(pending)
    if owner is None:
        # The owner writes its process id right after it creates the folder.
        with contextlib.suppress(OSError):
            # A clock that was set back makes the folder look as if it came from the future.
            return abs(time.time() - pending.stat().st_mtime) > _NAMELESS_SECONDS
        return False
    return not is_running(owner[0])


def _check_room(folder: Path, own: Path, needed: int, beside: int) -> None:
    """Check that a part fits into the folder's file system and below the memory limit.

    Raises:
        NoRoomError: If it does not fit beside what the other ranks are writing.
    """
    status = os.statvfs(folder)
    free = {"the memory file system": status.f_bavail * status.f_frsize}
    limit, used = memory_limit(), memory_bytes()
    if limit is not None and used is not None:
        free["the container's memory limit"] = limit[0] - used - beside
    lent = sum(path.stat().st_blocks * _BLOCK for path in own.iterdir())
    total = max(0, needed - lent) + sum(_missing(folder, own))
    for place, left in free.items():
        if total + RESERVE_BYTES > left:
            all_ranks = f" ({total / 2**20:,.0f} MiB for all ranks)" if total > needed else ""
            raise NoRoomError(
                f"it needs {needed / 2**20:,.0f} MiB{all_ranks} and {RESERVE_BYTES >> 20} MiB of"
                f" reserve, and {place} has {max(0, left) / 2**20:,.0f} MiB left"
            )


def _missing(folder: Path, own: Path) -> Iterator[int]:
    """Yield the bytes that each other running rank of this node has yet to write."""
    for file in folder.glob(f"*{PENDING}{_OWNER}"):
        pending = file.with_name(file.name.removesuffix(_OWNER))
        owner = None if pending == own else _owner(pending)
        if owner is None or not is_running(owner[0]):
            continue
        with contextlib.suppress(OSError):
            written = sum(path.stat().st_size for path in pending.iterdir())
            yield max(0, owner[1] - written)
