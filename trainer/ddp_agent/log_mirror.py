"""Keeps the ranks' logs on the shared volume too, since those of a lost pod are the ones one needs.

Ranks write to the container's own disk: a volume that is full or hangs must not end or stop them.
"""

import logging
import threading
from pathlib import Path

_log = logging.getLogger("ddp_agent")

EVERY_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
"""How long the end of the container waits for the last lines to be kept."""
_CHUNK = 1 << 20


class LogMirror:
    """Appends what is new in one directory's logs to those of another, from a thread of its own."""

    def __init__(self, source: Path, target: Path) -> None:
        """Begin; what the volume refuses is tried again, and said once."""
        self._source, self._target = source, target
        self._kept: dict[Path, int] = {}
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nothing new will come: keep what is left, and stop. Does not wait for it."""
        self._ended.set()

    def wait(self) -> None:
        """Wait until all is kept, but not for long: a volume may hang."""
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        try:
            for file in sorted(self._source.rglob("*.log")):
                self._append(file)
        except OSError as error:
            if not self._warned:
                _log.warning("logs are not kept in %s: %s", self._target, error)
            self._warned = True

    def _append(self, file: Path) -> None:
        done = self._kept.get(file, 0)
        if file.stat().st_size <= done:
            return
        kept = self._target / file.relative_to(self._source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as new, kept.open("r+b" if done else "wb") as old:
            new.seek(done)
            old.seek(done)
            while chunk := new.read(_CHUNK):
                old.write(chunk)
            old.flush()
            self._kept[file] = new.tell()
