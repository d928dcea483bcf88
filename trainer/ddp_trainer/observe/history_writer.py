"""Write the history of a run: the events of all its attempts in one file.

`ddpjob report` reads the file. A thread writes it, so that a slow or hanging volume cannot stop
training. The thread only appends to the file and never flushes it to the volume (fsync), so a crash
can damage the last line. Readers skip a damaged line.
"""

import contextlib
import json
import os
import queue
import threading
from pathlib import Path

from ddp_wire.contract import HISTORY_FILE
from ddp_wire.files import open_file

LARGEST_FILE = 64 << 20
"""Size of the file in bytes at which the writer stops adding lines."""
LINES_PER_AGE = 5000
"""Divisor of the run's age that gives the minimum time between two kept events of a type.

So the number of lines grows with the logarithm of the run's age.
"""
_ONCE = frozenset({"start", "resume", "complete", "stop", "summary"})
"""Types of events that occur at most once per attempt. All of them are kept."""
_REPEATED = frozenset({"progress", "eval", "checkpoint"})
_QUEUED = 1000
"""Maximum number of lines that wait for the volume. Later lines are dropped."""
_CLOSE_SECONDS = 2.0
"""Maximum seconds for which the end of a run waits for the volume."""


class HistoryWriter:
    """Writer of the history on global rank 0. A failing volume only causes gaps in the history."""

    def __init__(self, directory: Path) -> None:
        """Prepare the writer, without touching the directory.

        Args:
            directory: The run's directory.
        """
        self._path = directory / HISTORY_FILE
        self._queue: queue.Queue[tuple[str, float, bytes] | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        self._started = 0.0
        self._size = 0
        self._torn = False
        self._kept: dict[str, float] = {}

    def write(self, event: str, at: float, line: str) -> None:
        """Append an event, unless its type is not kept or was kept recently.

        Args:
            event: Type of the event.
            at: Unix seconds.
            line: The event as one line of JSON.
        """
        if event not in _ONCE and event not in _REPEATED:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="history", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((event, at, line.encode()))

    def close(self) -> None:
        """Wait until all lines are written, but not for long, because the volume may hang."""
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        file: int | None = None
        while (item := self._queue.get()) is not None:
            event, at, line = item
            try:
                if file is None:
                    file = self._open(at)
                if self._due(event, at):
                    self._append(file, line)
            except OSError:
                self._torn = True  # The next event tries again.
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _open(self, at: float) -> int:
        """Open the file. Read the age of the run, and whether the last line is complete."""
        file = open_file(self._path, self._path.parent, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            self._size = os.fstat(file).st_size
            first = os.pread(file, 1 << 16, 0).partition(b"\n")[0]
            started = _time_of(first)
            self._started = at if started is None else started
            self._torn = self._size > 0 and os.pread(file, 1, self._size - 1) != b"\n"
        except BaseException:
            os.close(file)
            raise
        return file

    def _due(self, event: str, at: float) -> bool:
        """Return whether to keep an event, from the time since the last event of its type."""
        if event in _ONCE:
            return True
        last = self._kept.get(event)
        if last is not None and abs(at - last) < (at - self._started) / LINES_PER_AGE:
            return False
        self._kept[event] = at
        return True

    def _append(self, file: int, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        if self._size + len(data) > LARGEST_FILE:
            return
        written = os.write(file, data)
        self._size += written
        self._torn = written < len(data)


def _time_of(line: bytes) -> float | None:
    """Return the time of an event, or None if the line is damaged."""
    try:
        at = json.loads(line)["time"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(at) if isinstance(at, (int, float)) else None
