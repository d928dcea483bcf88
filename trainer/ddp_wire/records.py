"""Names in the folder of a node's records, which its agent and its ranks share.

The agent creates the folder in memory and passes it to the ranks (`Env.RECORDS_DIR`). The ranks
write records there (`ddp_trainer.checkpoint.records`). Before the agent ends ranks for another
attempt, it writes the number of their attempt to `LEAVE_FILE`. Then each rank that gets SIGTERM
writes its parts of a record, and the agent waits while one is being written.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LEAVE_FILE = "leave"
"""File with the number of the attempt whose ranks must write a record and end."""
PENDING = ".tmp"
"""Suffix of a checkpoint, or of a part of a record, that is being written or deleted."""
PART_FILE = "part.json"
"""File with the description of a part, in the part's folder."""

_RECORD = re.compile(r"step-(?P<step>\d{8,16})\.attempt-(?P<attempt>\d{1,16})")
_LARGEST_PART_FILE = 1 << 16


def ask_to_leave(folder: Path, attempt: int) -> None:
    """Write the number of the attempt whose ranks must write a record and end."""
    with contextlib.suppress(OSError):  # Without records the next attempt uses a checkpoint.
        (folder / LEAVE_FILE).write_text(str(attempt))


def must_leave(folder: Path, attempt: int) -> bool:
    """Return whether the ranks of an attempt must write a record and end."""
    try:
        return (folder / LEAVE_FILE).read_text() == str(attempt)
    except OSError:
        return False


def newest_step(folder: Path, attempt: int) -> int | None:
    """Return the step of the newest record of an attempt that this node alone can provide, or None.

    If each rank holds a part of the state, the parts of all ranks must be on this node.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return None
    found = [match for name in names if (match := _RECORD.fullmatch(name))]
    whole = [m for m in found if int(m["attempt"]) == attempt and _is_whole(folder, m[0], names)]
    return max((int(match["step"]) for match in whole), default=None)


def _is_whole(folder: Path, record: str, names: Sequence[str]) -> bool:
    """Return whether this node has all parts of a record that the record needs."""
    try:
        with (folder / record / PART_FILE).open("rb") as file:
            part: Any = json.loads(file.read(_LARGEST_PART_FILE))
        needed = part["world_size"] if part["division"] == "all" else 0
        own = re.compile(rf"{re.escape(record)}\.rank-\d+")
        return sum(own.fullmatch(name) is not None for name in names) >= needed
    except (OSError, ValueError, TypeError, KeyError):
        return False


def is_written(folder: Path) -> bool:
    """Return whether a rank writes a record now."""
    try:
        return any(entry.name.endswith(PENDING) for entry in folder.iterdir())
    except OSError:
        return False
