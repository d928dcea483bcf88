"""What a rank does right now: a record in memory that the rank shares with its agent.

The rank writes it several times per update, so a write must cost no system call. Standard library
only, because agent and trainer use it.
"""

import mmap
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SUFFIX = ".activity"
"""Suffix of the record's file in the directory of heartbeats. The name is the local rank."""
QUESTION_SUFFIX = ".inspect"
"""Suffix of the datagram socket on which a rank waits for the agent's question what it does."""
ANSWER_SUFFIX = ".inspection"
"""Suffix of the file with its answer."""

_RECORD = struct.Struct("@ddd")
"""Step, activity and time. The rank writes each of them by one store of eight bytes, so a reader
sees old or new values, but never half of one."""
_LARGEST_STEP = 2**53


class Activity(IntEnum):
    """Part of a run in which a rank is."""

    STARTING = 0
    """The rank joins the others, builds, resumes and makes its first update."""
    DATA = 1
    """It waits for a batch."""
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    """It applies the gradients."""
    EXCHANGE = 5
    """It decides together with the other ranks whether to stop, save or report."""
    EVALUATION = 6
    CHECKPOINT = 7
    ENDING = 8
    """It waits for the other ranks at the end of the attempt."""
    HOOK = 9
    """It is in the task's `after_update`."""
    REPLICAS = 10
    """It compares its weights with those of the other ranks."""


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """Newest record of a rank."""

    step: int
    """Updates done, over all attempts."""
    activity: Activity
    since: float
    """Value of `time.monotonic()` when the rank last made progress."""


class ActivityWriter:
    """Writer of one rank's record. Only the training thread writes it."""

    def __init__(self, path: Path) -> None:
        """Create the record.

        Raises:
            OSError: The file cannot be created.
        """
        with path.open("w+b") as file:
            file.truncate(_RECORD.size)
            self._values = memoryview(mmap.mmap(file.fileno(), _RECORD.size)).cast("d")
        self.touch()

    def enter(self, activity: int) -> None:
        """Record the start of an activity."""
        self._values[1] = activity
        self._values[2] = time.monotonic()

    def touch(self) -> None:
        """Record progress within the same activity."""
        self._values[2] = time.monotonic()

    def step(self, step: int) -> None:
        """Record the number of updates done."""
        self._values[0] = step
        self._values[2] = time.monotonic()


def read_activities(directory: Path) -> dict[int, ActivityRecord]:
    """Return the newest record of each local rank. Leave out unreadable ones."""
    found = {}
    for path in directory.glob(f"*{SUFFIX}"):
        record = _read(path)
        if record is not None and path.stem.isdigit():
            found[int(path.stem)] = record
    return found


def _read(path: Path) -> ActivityRecord | None:
    try:
        return _parse(path.read_bytes())
    except (OSError, ValueError, struct.error):
        return None


def _parse(record: bytes) -> ActivityRecord:
    """Return a record.

    Raises:
        ValueError: The record is not one that a rank writes.
    """
    step, activity, since = _RECORD.unpack(record)
    if not 0.0 <= step <= _LARGEST_STEP or not 0.0 <= since <= time.monotonic():
        raise ValueError(f"step {step} at {since} s is not a record of a rank")
    return ActivityRecord(int(step), Activity(activity), since)
