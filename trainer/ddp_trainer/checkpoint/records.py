"""Keep records: checkpoints in the memory of a node, which ranks write on their way out.

Every rank of data parallel training holds the whole state. When an attempt ends early, the ranks
that can still reach a whole state write it to a folder in memory that belongs to the agent. The
next attempt starts from the newest record of all its nodes, or from a newer checkpoint. So a fault
of one rank costs no finished update, and a new attempt need not read the volume.

A record is a folder in the format of a checkpoint (`checkpoint.format`), with the same check of
sizes, checksums and contents. Each node keeps one, written by the first of its ranks:

    step-00000120.attempt-2.tmp/    a rank writes it
    step-00000120.attempt-2/        complete, by a rename
    step-00000120.attempt-2.starts  number of attempts that started from it

At most `MOST_STARTS` attempts start from one record, because its state may be the cause of the
failure. After them a run falls back to its newest checkpoint.
"""

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.format import (
    PENDING,
    STATE,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
    read_json,
)
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.writer import write_checkpoint
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import SavedState
from ddp_wire.machine import memory_bytes, memory_limit
from ddp_wire.processes import is_running

MOST_STARTS = 2
"""Maximum number of attempts that start from one record."""
RESERVE_BYTES = 64 << 20
"""Memory that a record must leave free, in bytes."""
DIGEST = "digest"
"""File in a record with the hash of the state that is equal on all ranks."""
_POLL_SECONDS = 0.01
_NAMELESS_SECONDS = 1.0
"""Age in seconds from which a pending record without an owner is abandoned."""
_STARTS = ".starts"


@dataclass(frozen=True, slots=True, order=True)
class Age:
    """Order of records and checkpoints: the newest one has the highest age."""

    rollbacks: int = -1
    """Number of rollbacks of the run. A rollback makes everything before it older."""
    step: int = -1

    @classmethod
    def of(cls, state: SavedState | None) -> "Age":
        """Return the age of a state. None is older than every state."""
        return cls() if state is None else cls(state.nonfinite.rollbacks, state.step)


@dataclass(frozen=True, slots=True)
class Record:
    """A complete record on this node."""

    path: Path
    age: Age
    digest: int
    """Hash of the state that is equal on all ranks, or 0 if the run does not compare its ranks."""


def newest(folder: Path) -> Record | None:
    """Return the newest complete record of this node from which an attempt may start, or None.

    Delete all others. Only one process of a node may call this, before the node's ranks train.
    """
    found: list[Record] = []
    for name in names_in(folder):
        path = folder / str(name)
        state = None if name.suffix or _starts(path) >= MOST_STARTS else _state(path)
        if state is None:
            remove(path)
        else:
            found.append(Record(path, Age.of(state), _number_in(path / DIGEST)))
    found.sort(key=lambda record: record.age)
    for older in found[:-1]:
        remove(older.path)
    return found[-1] if found else None


def _state(path: Path) -> SavedState | None:
    """Return the state in a record, or None if it is damaged."""
    try:
        verify_contents(path)
        return SavedState.model_validate(read_json(path / STATE))
    except (BrokenCheckpointError, InputError, OSError):
        return None


def count_start(record: Record) -> None:
    """Count an attempt that starts from a record."""
    _starts_file(record.path).write_text(str(_starts(record.path) + 1))


def _starts(path: Path) -> int:
    return _number_in(_starts_file(path))


def _number_in(file: Path) -> int:
    """Return the number in a file, or 0 without such a file."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


def _starts_file(path: Path) -> Path:
    return path.with_name(path.name + _STARTS)


def clear(folder: Path) -> None:
    """Delete all records of this node."""
    for name in names_in(folder):
        remove(folder / str(name))


def remove(path: Path) -> None:
    """Delete a record, complete or not."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        _starts_file(path).unlink()


class NoRoomError(Exception):
    """Error for a record that does not fit into the memory of the node. Its text says why."""


def write(folder: Path, name: CheckpointName, checkpoint: Checkpoint, *, digest: int = 0) -> bool:
    """Write a record, unless another rank of this node has written it or writes it now.

    In the second case wait for the other rank, and take its place if it ends before.

    Args:
        folder: Folder of the node's records. It must exist.
        name: Step and attempt.
        checkpoint: The whole state.
        digest: Hash of the state that is equal on all ranks.

    Returns:
        Whether this call has written the record.

    Raises:
        NoRoomError: If the record does not fit into memory.
        InputError: If checkpoints do not support the type of a tensor.
        OSError: If the folder fails. After an error no part of the record is left.
    """
    pending = folder / (str(name) + PENDING)
    while not _is_covered(folder, name):
        try:
            pending.mkdir()
        except FileExistsError:
            if _is_abandoned(pending):
                _discard(pending)
            time.sleep(_POLL_SECONDS)
            continue
        try:
            _owner_file(pending).write_text(str(os.getpid()))
            _check_room(folder, checkpoint.snapshot.nbytes())
            write_checkpoint(pending, name, checkpoint)
            (pending / DIGEST).write_text(str(digest))
            pending.rename(folder / str(name))
        except BaseException:
            _discard(pending)
            raise
        _discard(pending)
        for other in names_in(folder):
            if not other.suffix and (other.attempt, other.step) < (name.attempt, name.step):
                remove(folder / str(other))
        return True
    return False


def _is_covered(folder: Path, name: CheckpointName) -> bool:
    """Return whether the same attempt has a complete record of this step or of a later one."""
    others = [other for other in names_in(folder) if not other.suffix]
    return any(o.attempt == name.attempt and o.step >= name.step for o in others)


def _discard(pending: Path) -> None:
    """Delete a pending record, and the file about its owner."""
    shutil.rmtree(pending, ignore_errors=True)
    _owner_file(pending).unlink(missing_ok=True)


def _owner_file(pending: Path) -> Path:
    return pending.with_name(pending.name + ".owner")


def _is_abandoned(pending: Path) -> bool:
    """Return whether the process that began to write a record has ended."""
    try:
        owner = int(_owner_file(pending).read_text())
    except (OSError, ValueError):
        # The owner writes its process id right after it creates the folder.
        with contextlib.suppress(OSError):
            return time.time() - pending.stat().st_mtime > _NAMELESS_SECONDS
        return False
    return not is_running(owner)


def _check_room(folder: Path, needed: int) -> None:
    """Check that a record fits into the folder's file system and below the memory limit.

    Raises:
        NoRoomError: If it does not fit.
    """
    status = os.statvfs(folder)
    free = {"the memory file system": status.f_bavail * status.f_frsize}
    limit, used = memory_limit(), memory_bytes()
    if limit is not None and used is not None:
        free["the container's memory limit"] = limit[0] - used
    for place, left in free.items():
        if needed + RESERVE_BYTES > left:
            raise NoRoomError(
                f"it needs {needed / 2**20:,.0f} MiB and {RESERVE_BYTES >> 20} MiB of reserve, and"
                f" {place} has {max(0, left) / 2**20:,.0f} MiB left"
            )
