"""The folder of a node's records in memory, and the wait for ranks that write one.

Records are the state of a run that ranks keep when they must end. They are files in shared memory:
in a pod the volume at /dev/shm, which outlives a restart of the container and counts as memory of
the pod. The agent creates the folder for its ranks, and deletes it at its own end. An agent that
was killed leaves its folder behind, and the next agent on the same machine deletes it.
`ddp_trainer.checkpoint.records` writes and reads the records.

Process: agent (loop).
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

from ddp_wire.records import KeptSteps, ask_to_leave, is_written, kept_steps

_log = logging.getLogger("ddp_agent")

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a volume of the pod)
_PREFIX = "ddp-records-"
_LOCK = "lock"
WRITING_SECONDS = 30.0
"""Maximum seconds for which ranks that write a record may delay the end of their attempt."""


class RecordsFolder:
    """Folder of the records of one node of one job."""

    def __init__(self, job_uid: str, node_index: int, parent: Path = SHARED_MEMORY) -> None:
        """Create the folder, unless there is no shared memory.

        Args:
            job_uid: UID of the job. An agent of the same job and node uses the same folder.
            node_index: Index of the node within the job.
            parent: A folder in memory.
        """
        self.path: Path | None = None
        """The folder, or None without shared memory."""
        self._lock: int | None = None
        name = f"{_PREFIX}{os.getuid()}-{re.sub('[^A-Za-z0-9-]', '-', job_uid)}-{node_index}"
        try:
            _delete_abandoned(parent, name)
            self._create(parent / name)
        except OSError as error:
            _log.warning("the state of the run is not kept in memory: %s", error)

    def _create(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} must be a folder that only this user can use")
        self._lock = _lock(path)
        if self._lock is None:
            raise BlockingIOError(f"another agent uses {path}")
        self.path = path

    def ask_to_leave(self, attempt: int) -> None:
        """Make the ranks of an attempt write a record when they get SIGTERM."""
        if self.path is not None:
            ask_to_leave(self.path, attempt)

    def kept_steps(self, attempt: int, ranks: int) -> KeptSteps:
        """Return the updates of the records that an attempt of this node's ranks has written."""
        return kept_steps(self.path, attempt, ranks) if self.path is not None else KeptSteps()

    def is_written(self) -> bool:
        """Return whether a rank writes a record now."""
        return self.path is not None and is_written(self.path)

    def delete(self) -> None:
        """Delete the folder."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self.path = self._lock = None


def _lock(path: Path) -> int | None:
    """Lock a folder until this process ends. Return None if another process holds the lock."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _delete_abandoned(parent: Path, keep: str) -> None:
    """Delete the folders of this user's agents that have ended, except for one folder."""
    for path in parent.glob(f"{_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if path.name != keep and not path.is_symlink() and (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
