"""Keep records: the state of a run in the memory of its nodes, which ranks write on their way out.

When an attempt ends early, the ranks that can still reach a whole state write it to a folder in
memory that belongs to the agent. The next attempt starts from the newest whole record, or from a
newer checkpoint. So a fault of one rank costs no finished update, and a new attempt need not read
the volume.

A record has a common part, which every rank could write and one rank of each node writes. If ranks
hold parts of the state that others do not hold, each of them writes its own part as well. Each part
is a folder in the format of a checkpoint (`checkpoint.format`), with the same check of sizes,
checksums and contents:

    step-00000120.attempt-2/         the common part
    step-00000120.attempt-2.rank-3/  the part of rank 3
    ….tmp, ….tmp.owner               a rank writes a part; its process and the size of the part
    step-00000120.attempt-2.starts   number of attempts that started from the record

`checkpoint.record_choice` decides which record is used, and when it is whole. At most `MOST_STARTS`
attempts start from one record, because its state may be the cause of the failure. After them a run
falls back to its newest checkpoint. `checkpoint.record_writer` writes records.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.format import (
    LARGEST_RECORD,
    STATE,
    BrokenCheckpointError,
    CheckpointName,
    read_json,
)
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import SavedState
from ddp_wire.records import PART_FILE

MOST_STARTS = 2
"""Maximum number of attempts that start from one record."""

Division = Literal["whole", "own", "all"]
"""How a record is divided into parts:

- whole: the common part is the whole state.
- own: a rank may have a part. If it is lost, a rule replaces it (`run.state`).
- all: every rank has a part, and the record is whole only with all of them.
"""

_STARTS = ".starts"
_ENTRY = "step-"
"""Prefix of every file and folder of a record."""
_OWN_PART = re.compile(r"(?P<name>.+)\.rank-(?P<rank>0|[1-9]\d{0,6})")


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
class PartName:
    """Name of a part's folder."""

    record: CheckpointName
    rank: int | None = None
    """The rank whose part it is. None for the common part."""

    def __str__(self) -> str:
        return str(self.record) if self.rank is None else f"{self.record}.rank-{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "PartName | None":
        """Return the parsed name. None if `text` is not the name of a complete part."""
        match = _OWN_PART.fullmatch(text)
        record = CheckpointName.parse(match["name"] if match else text)
        if record is None or record.suffix:
            return None
        return cls(record, int(match["rank"]) if match else None)


class Part(BaseModel):
    """Description of a part, in the part and in messages between ranks."""

    model_config = ConfigDict(frozen=True, strict=True)

    step: int
    attempt: int
    rank: int | None
    """The rank whose part it is. None for the common part."""
    writer: int
    """The rank that wrote the part."""
    world_size: int
    rollbacks: int = 0
    division: Division = "whole"
    digest: int = 0
    """Hash of the state that is equal on all ranks, or 0 if the run does not compare its ranks."""
    residues: bool = False
    """Whether the part has residues of powersgd."""
    buffers: bool = False
    """Whether the part has buffers that follow `parallel.buffers: per_rank`."""
    job: str = ""
    """Uid of the job that wrote the part."""
    starts: int = 0
    """Number of attempts that started from the record."""

    @property
    def age(self) -> Age:
        """Age of the record."""
        return Age(self.rollbacks, self.step)

    @property
    def record(self) -> CheckpointName:
        """Name of the record."""
        return CheckpointName(self.step, self.attempt)

    @property
    def name(self) -> PartName:
        """Name of the part's folder."""
        return PartName(self.record, self.rank)


Check = Callable[[Path, PartName], Part]
"""Function that returns the description of a part. It raises an error for a damaged one."""


def find(
    folder: Path,
    index: int = 0,
    count: int = 1,
    *,
    job: str = "",
    check: Check | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Part]:
    """Return the undamaged parts of records on this node.

    The ranks of a node share the work: each checks its share of the parts. Nothing is changed.

    Args:
        folder: Folder of the node's records.
        index: Index of this rank among those of its node.
        count: Number of ranks on this node.
        job: Uid of the job.
        check: Function that returns the description of an undamaged part. By default the parts are
            those of a task.
        warn: Function that is called with a sentence about each part that is not usable.
    """
    try:
        entries = sorted(_entries(folder))
    except OSError as error:
        warn(f"the states in memory cannot be read, so none is used: {error}")
        return []
    found, check = [], check or _checked
    for name in list(filter(None, map(PartName.parse, entries)))[index::count]:
        path = folder / str(name)
        try:
            part = check(path, name)
        except (BrokenCheckpointError, InputError, OSError) as error:
            warn(f"the state in memory at {path} is not used: {error}")
            continue
        if part.job == job:
            found.append(part.model_copy(update={"starts": starts(folder, part.record)}))
        else:
            warn(f"the state in memory at {path} is not used: another job wrote it")
    return found


def _checked(path: Path, name: PartName) -> Part:
    """Return the description of a part.

    Raises:
        BrokenCheckpointError: If the part is damaged, or has another name.
        InputError: If it has an unknown format.
        OSError: If it cannot be read.
    """
    verify_contents(path, partial=True)
    state = SavedState.model_validate(read_json(path / STATE))
    part = described(path, name)
    written = (state.step, state.attempt, state.world_size, Age.of(state))
    if written != (part.step, part.attempt, part.world_size, part.age):
        raise BrokenCheckpointError(f"{PART_FILE} describes another part")
    return part


def described(path: Path, name: PartName) -> Part:
    """Return the description in a part.

    Raises:
        BrokenCheckpointError: If it is damaged, or that of another part.
        OSError: If it cannot be read.
    """
    try:
        part = Part.model_validate(read_json(path / PART_FILE, LARGEST_RECORD))
    except ValidationError as error:
        raise BrokenCheckpointError(f"{PART_FILE} is damaged") from error
    if part.name != name:
        raise BrokenCheckpointError(f"{PART_FILE} describes another part")
    return part


def _entries(folder: Path) -> list[str]:
    """Return the names of all files and folders of records.

    Raises:
        OSError: If the folder cannot be read.
    """
    try:
        return [entry.name for entry in folder.iterdir() if entry.name.startswith(_ENTRY)]
    except FileNotFoundError:
        return []


def count_start(folder: Path, record: CheckpointName) -> None:
    """Count an attempt that starts from a record. Only one process of a node may call this."""
    number = starts(folder, record) + 1
    with contextlib.suppress(OSError):
        (folder / f"{record}{_STARTS}").write_text(str(number))


def starts(folder: Path, record: CheckpointName) -> int:
    """Return the number of attempts that have started from a record."""
    try:
        return int((folder / f"{record}{_STARTS}").read_text())
    except (OSError, ValueError):
        return 0


def keep_only(folder: Path, record: CheckpointName | None) -> None:
    """Delete all records of this node except one. Only one process of a node may call this."""
    kept = (
        None if record is None else re.compile(rf"{re.escape(str(record))}(\.rank-\d+|{_STARTS})?")
    )
    with contextlib.suppress(OSError):
        remove(folder / name for name in _entries(folder) if not (kept and kept.fullmatch(name)))


def clear(folder: Path) -> None:
    """Delete all records of this node."""
    keep_only(folder, None)


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders of records."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)


def others_of(folder: Path, record: CheckpointName) -> list[Path]:
    """Return the complete parts of older records, and the numbers of their starts."""
    found = []
    for entry in _entries(folder):
        name = PartName.parse(entry.removesuffix(_STARTS))
        if name and (name.record.attempt, name.record.step) < (record.attempt, record.step):
            found.append(folder / entry)
    return found


def is_covered(folder: Path, name: PartName) -> bool:
    """Return whether the same attempt has this part, complete, of this step or of a later one."""
    others = filter(None, map(PartName.parse, _entries(folder)))
    return any(
        other.record.attempt == name.record.attempt
        and other.rank == name.rank
        and other.record.step >= name.record.step
        for other in others
    )
