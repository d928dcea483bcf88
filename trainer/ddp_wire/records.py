"""Names in the folder of a node's records, which its agent and its ranks share.

The agent creates the folder in memory and passes it to the ranks (`Env.RECORDS_DIR`). The ranks
write records there (`ddp_trainer.checkpoint.records`). Before the agent ends ranks for another
attempt, it writes the number of their attempt to `LEAVE_FILE`. Then each rank that gets SIGTERM
writes its parts of a record, and the agent waits while one is being written, or while a rank waits
for the end of its update first.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LEAVE_FILE = "leave"
"""File with the number of the attempt whose ranks must write a record and end."""
PENDING = ".tmp"
"""Suffix of a checkpoint, or of a part of a record, that is being written or deleted."""
PART_FILE = "part.json"
"""File with the description of a part, in the part's folder."""

_LEAVING = "leaving-"
_RECORD = re.compile(r"step-(?P<step>\d{8,16})\.attempt-(?P<attempt>\d{1,16})")
_LARGEST_PART_FILE = 1 << 16


def ask_to_leave(folder: Path, attempt: int) -> None:
    """Write the number of the attempt whose ranks must write a record and end."""
    with contextlib.suppress(OSError):  # Without records the next attempt uses a checkpoint.
        for left in folder.glob(f"{_LEAVING}*{PENDING}"):
            left.unlink()  # Its rank was killed.
        (folder / LEAVE_FILE).write_text(str(attempt))


def must_leave(folder: Path, attempt: int) -> bool:
    """Return whether the ranks of an attempt must write a record and end."""
    try:
        return (folder / LEAVE_FILE).read_text() == str(attempt)
    except OSError:
        return False


@contextlib.contextmanager
def leaving(folder: Path) -> Iterator[None]:
    """Tell the agent to wait for this process, which must write a record once its update ends."""
    mark = folder / f"{_LEAVING}{os.getpid()}{PENDING}"
    with contextlib.suppress(OSError):  # Then the agent waits only for the record itself.
        mark.touch(mode=0o600)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


class KeptSteps(NamedTuple):
    """Updates after which the ranks of a node have kept their state in an attempt."""

    whole: int | None = None
    """Update of the newest record that this node alone can provide."""
    parts: int | None = None
    """Update of the newest record of which all ranks of this node have their parts here, while the
    record also needs the parts of other nodes' ranks."""


def kept_steps(folder: Path, attempt: int, ranks: int) -> KeptSteps:
    """Return the updates of the records that an attempt has written on this node.

    Args:
        folder: Folder of the node's records.
        attempt: Number of the attempt.
        ranks: Number of ranks of this node.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return KeptSteps()
    whole, parts = [], []
    for found in filter(None, map(_RECORD.fullmatch, names)):
        if int(found["attempt"]) == attempt and (needed := _needed_parts(folder / found[0])) >= 0:
            own = re.compile(rf"{re.escape(found[0])}\.rank-\d+")
            count = sum(own.fullmatch(name) is not None for name in names)
            if count >= needed:
                whole.append(int(found["step"]))
            elif count >= ranks:
                parts.append(int(found["step"]))
    return KeptSteps(max(whole, default=None), max(parts, default=None))


def _needed_parts(record: Path) -> int:
    """Return the number of ranks whose parts a record needs, or -1 if it cannot be read."""
    try:
        with (record / PART_FILE).open("rb") as file:
            part: Any = json.loads(file.read(_LARGEST_PART_FILE))
        return int(part["world_size"]) if part["division"] == "all" else 0
    except (OSError, ValueError, TypeError, KeyError):
        return -1


def is_written(folder: Path) -> bool:
    """Return whether a rank writes a record now, or will do so when its update ends."""
    try:
        return any(entry.name.endswith(PENDING) for entry in folder.iterdir())
    except OSError:
        return False
