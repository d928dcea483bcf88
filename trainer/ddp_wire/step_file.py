"""The newest step of a rank, in a file of 16 bytes that the rank overwrites after each update.

Heartbeats are written about twice a second. An overwrite takes some microseconds and survives a
SIGKILL of the rank, so the agent knows the last step of a killed rank exactly.
"""

import os
import struct
from pathlib import Path

_FORMAT = struct.Struct("<qq")
"""Number of the attempt, and number of completed updates of the run."""


class StepFile:
    """Writer of one rank's newest step."""

    def __init__(self, directory: Path, local_rank: int, attempt: int) -> None:
        self._path, self._attempt = step_path(directory, local_rank), attempt
        self._file: int | None = None

    def write(self, step: int) -> None:
        """Overwrite the step.

        Raises:
            OSError: The disk fails.
        """
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(self._file, _FORMAT.pack(self._attempt, step), 0)


def step_path(directory: Path, local_rank: int) -> Path:
    """Return the path of a rank's step file in the directory of the heartbeats."""
    return directory / f"{local_rank}.step"


def read_step(directory: Path, local_rank: int, attempt: int) -> tuple[int, float] | None:
    """Return a rank's newest step in an attempt and the time of its write in Unix seconds.

    Return None if the rank has done no update in the attempt.
    """
    try:
        with step_path(directory, local_rank).open("rb") as file:
            of_attempt, step = _FORMAT.unpack(file.read(_FORMAT.size))
            at = os.fstat(file.fileno()).st_mtime
    except (OSError, struct.error):
        return None
    return (step, at) if of_attempt == attempt else None
