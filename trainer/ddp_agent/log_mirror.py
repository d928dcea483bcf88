"""Copies the ranks' logs to the shared volume, where the logs of a lost pod survive.

The ranks write to the container's own disk, because a full or hanging volume must not stop them.
"""

import logging
import threading
from pathlib import Path

_log = logging.getLogger("ddp_agent")

EVERY_SECONDS = 1.0
"""Interval between two copies, in seconds."""
_CLOSE_SECONDS = 2.0
"""Maximum time that the end of the container waits for the last lines, in seconds."""
_CHUNK = 1 << 20


class LogMirror:
    """Thread that appends new log lines of one directory to the same files of another one."""

    def __init__(self, source: Path, target: Path) -> None:
        """Start copying. Each failed copy is retried, but only the first failure is logged."""
        self._source, self._target = source, target
        self._copied: dict[Path, int] = {}
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop after one last copy. Do not wait for it."""
        self._ended.set()

    def wait(self) -> None:
        """Wait for the last copy, but only briefly, because the volume may hang."""
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._copy_all()
        self._copy_all()

    def _copy_all(self) -> None:
        """Copy the new lines of all log files."""
        try:
            for file in sorted(self._source.rglob("*.log")):
                self._copy(file)
        except OSError as error:
            if not self._warned:
                _log.warning("logs could not be copied to %s: %s", self._target, error)
            self._warned = True

    def _copy(self, file: Path) -> None:
        """Copy the new lines of one log file."""
        done = self._copied.get(file, 0)
        if file.stat().st_size <= done:
            return
        copy = self._target / file.relative_to(self._source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as new, copy.open("r+b" if done else "wb") as old:
            new.seek(done)
            old.seek(done)
            while chunk := new.read(_CHUNK):
                old.write(chunk)
            old.flush()
            self._copied[file] = new.tell()
