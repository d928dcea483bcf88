"""Names in the folder of a node's records, which its agent and its ranks share.

The agent creates the folder in memory and passes it to the ranks (`Env.RECORDS_DIR`). The ranks
write records there (`ddp_trainer.checkpoint.records`). Before the agent ends ranks for another
attempt, it writes the number of their attempt to `LEAVE_FILE`. Then each rank that gets SIGTERM
writes a record, and the agent waits while one is being written.
"""

import contextlib
import re
from pathlib import Path

LEAVE_FILE = "leave"
"""File with the number of the attempt whose ranks must write a record and end."""
PENDING = ".tmp"
"""Suffix of a checkpoint or a record that is being written or deleted."""

_RECORD = re.compile(r"step-(?P<step>\d{8,16})\.attempt-(?P<attempt>\d{1,16})")


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
    """Return the step of the newest complete record that an attempt has written, or None."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return None
    found = [match for name in names if (match := _RECORD.fullmatch(name))]
    return max((int(m["step"]) for m in found if int(m["attempt"]) == attempt), default=None)


def is_written(folder: Path) -> bool:
    """Return whether a rank writes a record now."""
    try:
        return any(entry.name.endswith(PENDING) for entry in folder.iterdir())
    except OSError:
        return False
