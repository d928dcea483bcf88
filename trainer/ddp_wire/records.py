"""Names in the folder of a node's records, which its agent and its ranks share.

The agent creates the folder in memory and passes it to the ranks (`Env.RECORDS_DIR`). The ranks
write records there (`ddp_trainer.checkpoint.records`). Before the agent ends ranks for another
attempt, it writes the number of their attempt to `LEAVE_FILE`. Then each rank that gets SIGTERM
writes a record, and the agent waits while one is being written.
"""

import contextlib
from pathlib import Path

LEAVE_FILE = "leave"
"""File with the number of the attempt whose ranks must write a record and end."""
PENDING = ".tmp"
"""Suffix of a record that is being written."""


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


def is_written(folder: Path) -> bool:
    """Return whether a rank writes a record now."""
    try:
        return any(entry.name.endswith(PENDING) for entry in folder.iterdir())
    except OSError:
        return False
