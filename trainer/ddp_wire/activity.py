"""Memory-mapped record of a rank's current activity, for its agent.

The rank writes the record several times per update, so a write must cost no system call. The module
imports only the standard library, because agent and trainer share it.
"""

import mmap
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SUFFIX = ".activity"
"""Suffix of a record's file in the heartbeat directory. The stem of its name is the local rank."""
QUESTION_SUFFIX = ".inspect"
"""Suffix of a rank's datagram socket. The agent sends a datagram to it to ask what the rank
does."""
ANSWER_SUFFIX = ".inspection"
"""Suffix of the file into which the rank writes its answer to the agent."""

_RECORD = struct.Struct("@ddd")
"""Format of a record: step, activity and time. The rank writes each value with one 8-byte store, so
a reader never sees half of a value."""
_LARGEST_STEP = 2**53


class Activity(IntEnum):
    """Part of a run that a rank executes."""

    STARTING = 0
    """The rank joins the other ranks, builds the model, resumes and does its first update."""
    DATA = 1
    """The rank waits for a batch."""
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    """The rank applies the gradients."""
    EXCHANGE = 5
    """The ranks decide together whether to stop, save or report."""
    EVALUATION = 6
    CHECKPOINT = 7
    ENDING = 8
    """The rank waits for the other ranks at the end of the attempt."""
    HOOK = 9
    """The rank runs the task's `after_update`."""
    REPLICAS = 10
    """The rank compares its weights with those of the other ranks."""


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """The newest activity record of a rank."""

    step: int
    """Updates done, over all attempts."""
    activity: Activity
    since: float
    """Value of `time.monotonic()` when the rank last made progress."""


class ActivityWriter:
    """Writer of one rank's record. Only the training thread may call it."""

    def __init__(self, path: Path) -> None:
        """Create the record's file and map it into memory.

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
    """Return the newest record of each local rank. Skip records that cannot be read or parsed."""
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
    """Parse the bytes of a record.

    Raises:
        ValueError: A value is out of range.
    """
    step, activity, since = _RECORD.unpack(record)
    if not 0.0 <= step <= _LARGEST_STEP or not 0.0 <= since <= time.monotonic():
        raise ValueError(f"step {step} at {since} s is not a record of a rank")
    return ActivityRecord(int(step), Activity(activity), since)
