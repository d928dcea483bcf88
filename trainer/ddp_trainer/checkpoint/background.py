"""Hand checkpoints over to the process of the node that writes them (`background_process`).

Each rank that has a part copies it to its slot, in the form of the files. A slot is anonymous
shared memory (memfd): it has no name that another process could plant or forget, it belongs to the
rank, and the kernel frees it with the last process that uses it. Its pages stay allocated between
saves, so that later copies are fast. The first rank of a node starts the process and sends it the
saves.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO

from ddp_trainer.checkpoint.background_process import SaveOrder, Status
from ddp_trainer.checkpoint.division import Pieces
from ddp_trainer.checkpoint.tensor_file import piece_parts
from ddp_wire.machine import memory_bytes, memory_limit

STALL_SECONDS = 10.0
"""Seconds without progress after which a write counts as stalled."""
SLOW_SECONDS = 5.0
"""Seconds for which a small save may stop training. After a slower one, `checkpoint.background:
auto` writes the next ones in the background, too."""
START_SECONDS = 60.0
"""Seconds within which the process must start."""
RESTART_SECONDS = 5.0
"""Minimum seconds between two restarts of the process."""
RESERVE_BYTES = 64 << 20
"""Memory that slots must leave free below the container's limit, in bytes."""
_COMMAND = [sys.executable, "-m", "ddp_trainer.checkpoint.background_process"]
_PIPE_BYTES = 1 << 20
_OUT = frozenset({"done", "fenced"})
"""States of a save that no process writes any more."""
IDLE, BUSY, TROUBLED = range(3)
"""States of a process: nothing to write, writing, or failing and trying again."""


class CopySlot:
    """This rank's slot, which holds its part of one save."""

    def __init__(self) -> None:
        self.descriptor = -1
        """Descriptor of the memory. -1 before the first copy."""

    @property
    def size(self) -> int:
        """Size of the slot in bytes, which stay allocated."""
        return 0 if self.descriptor < 0 else os.fstat(self.descriptor).st_size

    def fill(self, number: int, pieces: Pieces) -> None:
        """Copy a part to the slot.

        Args:
            number: Number of the part, from 1.
            pieces: What this rank writes.

        Raises:
            InputError: If checkpoints do not support the type of a tensor.
            OSError: If memory is missing.
        """
        if self.descriptor < 0:
            self.descriptor = os.memfd_create("ddp-checkpoint", os.MFD_CLOEXEC)
        files: dict[str, tuple[int, int]] = {}
        place = 0
        for file, those in pieces.items():
            begin = place
            for part in piece_parts(those):
                place += self._put(part, place)
            files[file] = begin, place - begin
        trailer = json.dumps({"number": number, "files": files}).encode()
        trailer += len(trailer).to_bytes(8, "little")
        place += self._put(trailer, place)
        os.ftruncate(self.descriptor, place)

    def _put(self, data: bytes | memoryview, place: int) -> int:
        size = len(data)
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, place + size - len(view))
            view = view[written:]
        return size


def room_for(growth: int) -> str | None:
    """Return why slots cannot grow by a number of bytes on this node, or None if they can."""
    limit, used = memory_limit(), memory_bytes()
    if limit is None or used is None or growth + RESERVE_BYTES <= limit[0] - used:
        return None
    return (
        f"a copy of the state needs {growth / 2**20:,.0f} MiB more and"
        f" {RESERVE_BYTES >> 20} MiB of reserve, and the container's memory limit has"
        f" {max(0, limit[0] - used) / 2**20:,.0f} MiB left"
    )


class BackgroundProcess:
    """The process of this node, as its first rank sees it. No call waits for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        """The newest process. None after its end, until it is started again."""
        self._reader: threading.Thread | None = None
        self._job: SaveOrder | None = None
        self._status = Status("")
        self._has_reported = False
        """Whether the newest process has sent a status of the save."""
        self._progress_at = 0.0
        self._most_bytes = 0
        """Largest number of bytes of the save that a process has written in one try."""
        self._failures = 0
        """Number of processes that have ended, or did not start, since the save made progress."""
        self._failure = ""
        """What happened to the newest of them, as a sentence without its subject."""
        self._restarted_at = -math.inf
        self.started = 0.0
        """Value of `time.monotonic()` when the newest save began."""
        self._announced: set[str] = set()

    def start(self, job: SaveOrder) -> None:
        """Begin a save. Start the process if it does not run.

        Raises:
            OSError: If the process cannot be started.
        """
        self._announced, self._failures = set(), 0
        self._status, self._most_bytes = Status(job.claim["save"], "starting"), 0
        self.started = self._progress_at = time.monotonic()
        self._send(job)
        self._job = job

    def _send(self, job: SaveOrder) -> None:
        self._has_reported = False
        if self._process is None or self._process.poll() is not None:
            self._spawn()
        stream = None if self._process is None else self._process.stdin
        if stream is None:
            raise BrokenPipeError("the process has no standard input")
        stream.write(job.model_dump_json() + "\n")
        stream.flush()

    def _spawn(self) -> None:
        process = subprocess.Popen(
            [*_COMMAND, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with contextlib.suppress(OSError):  # So that no write waits for a process that starts.
            fcntl.fcntl(process.stdin or -1, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        try:
            self._reader.start()
        except RuntimeError as error:  # Threads have the same limit as processes.
            process.kill()
            raise OSError(errno.EAGAIN, str(error)) from error
        self._process = process

    def _read(self, process: "subprocess.Popen[str]") -> None:
        stream: IO[str] | None = process.stdout
        for line in stream or ():
            with contextlib.suppress(ValueError, TypeError):  # A killed process may cut a line.
                self._receive(Status(**json.loads(line)))

    def _receive(self, status: Status) -> None:
        """Record a status. After a failure only more bytes than ever before count as progress.

        Otherwise a process that always fails would look like one that makes progress.
        """
        if status.save != self._status.save:
            return
        if status.bytes > self._most_bytes:
            self._most_bytes, self._failures = status.bytes, 0
        is_waiting = status.state == self._status.state == "waiting"
        if not self._failures and not is_waiting:
            self._progress_at = time.monotonic()
        self._status, self._has_reported = status, True

    @property
    def job(self) -> SaveOrder | None:
        """The save that is not out, or None."""
        return self._job

    def state(self) -> int:
        """Return `IDLE`, `BUSY` or `TROUBLED`."""
        if self._job is None:
            return IDLE
        return TROUBLED if self._trouble() else BUSY

    def _trouble(self) -> str:
        """Return what keeps the save from progress, or an empty text."""
        if self._status.state in _OUT:
            return ""
        if self._process is None or self._failures > 1:
            return f"the process that writes it {self._failure}"
        if self._status.state == "failed":
            return self._status.error
        silent = time.monotonic() - self._progress_at
        if not self._has_reported:
            return "" if silent < START_SECONDS else "the process that writes it does not start"
        if silent < STALL_SECONDS:
            return ""
        if self._status.state == "waiting":
            return self._status.error
        if self._failures:
            return f"its process {self._failure}, and a new one has not written more yet"
        return f"the volume has not answered for {STALL_SECONDS:.0f} s"

    def finished(self) -> Status | None:
        """Return the last status of a save that is out, once; None if there is none."""
        if self._job is None or self._status.state not in _OUT:
            return None
        self._job = None
        return self._status

    def warning(self) -> str | None:
        """Return a sentence about a new problem, once. Start the process again if it has ended."""
        if self._job is None:
            return None
        self._note_end()
        if self._status.state in _OUT:
            return None
        is_due = time.monotonic() - self._restarted_at >= RESTART_SECONDS
        if self._process is None and is_due:
            self._restart(self._job)
            if self._failures == 1:
                return (
                    f"the process that writes {self._job.name} {self._failure}; a new one writes it"
                )
        trouble = self._trouble()
        if not trouble or trouble in self._announced:
            return None
        self._announced.add(trouble)
        return (
            f"{self._job.name} is not written to {self._job.directory} yet: {trouble}; training"
            " continues, and the write is tried again"
        )

    def _note_end(self) -> None:
        """Record that the process has ended, after its last status is read."""
        process, reader = self._process, self._reader
        code = None if process is None else process.poll()
        if process is None or code is None or (reader is not None and reader.is_alive()):
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # It did not read all that it was sent.
                stream.close() if stream is not None else None
        self._process = None
        self._failures += 1
        self._failure = f"ended with exit code {code}"

    def _restart(self, job: SaveOrder) -> None:
        """Start the process again."""
        self._restarted_at = time.monotonic()
        try:
            self._send(job)
        except BrokenPipeError:
            pass  # It has ended already, which `_note_end` records.
        except OSError as error:
            self._failures += 1
            self._failure = f"cannot be started: {error}"

    def cancel(self) -> None:
        """End the process. Its save is not written."""
        self._job = None
        if self._process is not None:
            self._process.kill()
            self._process = None


@dataclass(slots=True)
class Background:
    """What a rank needs for writes in the background."""

    slot: CopySlot = field(default_factory=CopySlot)
    process: BackgroundProcess = field(default_factory=BackgroundProcess)
    """Process of the node. Only the first rank of a node uses it."""
    blocked: float = 0.0
    """Seconds for which the newest save stopped training."""
    step: int = -1
    """Updates in the newest save."""
    waited: float = 0.0
    """Seconds for which the slowest save stopped training that was written while it waits."""

    def unwritten_seconds(self) -> float | None:
        """Return the age of the save that is not written, 0 if none is, and None before any."""
        if self.step < 0:
            return None
        return time.monotonic() - self.process.started if self.process.job else 0.0
