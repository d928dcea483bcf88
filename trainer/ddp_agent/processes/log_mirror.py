"""Copy the ranks' logs to the shared volume, where the logs of a lost pod survive.

The ranks write to the container's own disk, because a full or hanging volume must not stop them.
The logs and their copies have a maximum size, because a run may print for months.

Process: agent (a thread per attempt).
"""

import contextlib
import ctypes
import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddp_wire.files import open_file, open_folder, remove

_log = logging.getLogger("ddp_agent")

EVERY_SECONDS = 1.0
"""Seconds between two copies."""
LARGEST_COPY = 64 << 20
"""Size of a copy in bytes at which it becomes the older half and a new copy begins."""
LARGEST_LOG = 256 << 20
"""Number of bytes at the end of a log that always stay on the container's disk."""
COPIED_TAIL = 16 << 20
"""Number of bytes at the end of a log that stay on the disk if its copy is up to date."""
KEPT_ATTEMPTS = 10
"""Number of attempts whose logs stay on the shared volume."""
_CLOSE_SECONDS = 2.0
"""Maximum seconds for which the container waits at its end for the last copy."""
_CHUNK = 1 << 20
_PUNCH_HOLE = 0x03
"""Flags FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE of fallocate(2)."""


@dataclass
class _Copied:
    """State of the copy of one log. All numbers are positions in the log, in bytes."""

    end: int = 0
    """Position up to which all bytes are copied or lost."""
    begin: int = 0
    """Position of the first byte in the current copy."""
    freed: int = 0
    """Position up to which all bytes were removed from the container's disk."""


class LogMirror:
    """Thread that copies new log lines to files of the same names in a second directory."""

    def __init__(self, source: Path, target: Path | None) -> None:
        """Start copying. Each failed copy is retried, but only the first failure is logged.

        Args:
            source: Directory of the ranks' logs.
            target: Directory for the copies, `logs/attempt-N/node-K` in the run's directory.
                Without it, the thread only limits the size of the logs.
        """
        self._source, self._target = source, target
        self._directory = target.parents[2] if target else Path()
        self._copied: dict[Path, _Copied] = {}
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell the thread to stop after one last copy. Do not wait for it."""
        self._ended.set()

    def wait(self) -> None:
        """Wait for the last copy, but only briefly, because the volume may hang."""
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        if self._target is not None:
            with contextlib.suppress(OSError):  # The next attempt tries again.
                _remove_old_logs(self._target, self._directory)
        while not self._ended.wait(EVERY_SECONDS):
            self._copy_all()
        self._copy_all()

    def _copy_all(self) -> None:
        """Copy the new lines of all log files, and free the old parts of the logs."""
        for file in sorted(self._source.rglob("*.log")):
            state = self._copied.setdefault(file, _Copied())
            try:
                if self._target is not None:
                    self._copy(file, self._target / file.relative_to(self._source), state)
            except OSError as error:
                if not self._warned:
                    _log.warning("logs could not be copied to %s: %s", self._target, error)
                self._warned = True
            _free(file, state)

    def _copy(self, file: Path, copy: Path, state: _Copied) -> None:
        """Append the new lines of one log to its copy."""
        while state.end < file.stat().st_size:
            if state.end - state.begin >= LARGEST_COPY:
                with open_folder(copy.parent, self._directory) as folder:
                    older = f"{copy.name}.old"
                    os.replace(copy.name, older, src_dir_fd=folder, dst_dir_fd=folder)
                state.begin = state.end
            with file.open("rb") as log, self._open(copy, state) as old:
                log.seek(state.end)
                old.seek(state.end - state.begin)
                chunk = log.read(_CHUNK)
                old.write(chunk)
                old.flush()
            state.end += len(chunk)

    def _open(self, copy: Path, state: _Copied) -> IO[bytes]:
        """Open a copy to append to it. Create the copy if it is missing."""
        if state.end > state.begin:
            with contextlib.suppress(FileNotFoundError):
                return os.fdopen(open_file(copy, self._directory, os.O_RDWR), "r+b")
        state.begin = state.end
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.fdopen(open_file(copy, self._directory, flags), "wb")


def _free(file: Path, state: _Copied) -> None:
    """Free the disk space of the start of a long log. All positions stay the same.

    The rank continues to write at its position, and torchrun reads at its own, so the file cannot
    be replaced.
    """
    if sys.platform != "linux":
        return
    size = file.stat().st_size
    until = max(min(state.end, size) - COPIED_TAIL, size - LARGEST_LOG)
    if until - state.freed < COPIED_TAIL:
        return
    with file.open("r+b") as log:
        ctypes.CDLL(None).fallocate(
            log.fileno(), _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(until)
        )
    state.freed = until
    if state.end < until:
        state.begin += until - state.end
        state.end = until


def _remove_old_logs(target: Path, directory: Path) -> None:
    """Remove this node's logs of old attempts.

    Args:
        target: This attempt's logs, `logs/attempt-N/node-K` in the run's directory.
        directory: The run's directory.
    """
    present, logs = _attempt(target.parent.name), target.parent.parent
    if present is None:
        return
    with open_folder(logs, directory) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib takes no descriptor
            attempt = _attempt(name)
            if attempt is not None and attempt <= present - KEPT_ATTEMPTS:
                with contextlib.suppress(OSError):  # Other nodes' logs are still there.
                    remove(logs / name / target.name, directory)
                    os.rmdir(name, dir_fd=folder)


def _attempt(name: str) -> int | None:
    """Return the attempt number in a directory name, or None for any other name."""
    number = name.removeprefix("attempt-")
    return int(number) if number.isdigit() else None
