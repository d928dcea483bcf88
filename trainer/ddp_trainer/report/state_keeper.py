"""Keep the state of a script in the agent's memory when the script must end.

The script says how to get its state, and when the state changes. In all other moments the state is
whole, so that it may be kept: in the main thread after an exception, or in another thread after
SIGTERM with the agent's request, because the main thread may wait in a collective for ever.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ddp_trainer.checkpoint.gate import Gate
from ddp_trainer.checkpoint.record_writer import NoRoomError
from ddp_trainer.checkpoint.records import Part
from ddp_trainer.checkpoint.script_state import write_state
from ddp_trainer.errors import ReportedError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.report.checks import warn
from ddp_wire.exit_codes import ExitCode
from ddp_wire.records import leaving, must_leave

_GATE_SECONDS = 5.0
"""Maximum seconds for which a script that must leave waits for the end of its update."""


class StateKeeper:
    """Writer of a script's state."""

    def __init__(
        self,
        state: Callable[[], Any],
        step: int,
        folder: Path,
        *,
        attempt: int,
        ranks: Ranks,
        job: str = "",
    ) -> None:
        """Keep a state, from the call of `keeping` on.

        Args:
            state: Function that returns the state.
            step: Number of completed updates.
            folder: Folder of the node's records.
            attempt: Number of this attempt.
            ranks: This process's rank.
            job: Uid of the job.
        """
        self._job = job
        self._state, self._step, self._first = state, step, step
        self._folder, self._attempt, self._ranks = folder, attempt, ranks
        self._gate = Gate()
        self._lock = threading.Lock()
        self._written = self._changes = False
        self._is_updating = False

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Return a context in which the state is kept if the script must end."""
        with _terminated(self._leave_if_asked, self._is_ending):
            self._gate.__enter__()
            try:
                yield
            except BaseException as error:
                self._close()
                stopped = isinstance(error, SystemExit) and error.code == ExitCode.PREEMPTED
                if isinstance(error, Exception) or stopped:
                    self._write()
                raise
            else:
                self._close()

    @contextmanager
    def update(self, step: int) -> Iterator[None]:
        """Return a context in which the state changes. An exception leaves it changed in part.

        Args:
            step: Number of completed updates after the change.

        Raises:
            RuntimeError: If another such context is open. Its end would call the state whole.
        """
        if self._is_updating:
            raise RuntimeError("report: only one update context can be open")
        self._is_updating = True
        try:
            self._close()
            self._changes = True
            yield
            self._step, self._changes = step, False
            self._gate.__enter__()
        finally:
            self._is_updating = False

    def _close(self) -> None:
        """Close the gate, unless an update has left it closed."""
        if not self._changes:
            self._gate.__exit__(None, None, None)

    def _is_ending(self) -> bool:
        """Return whether the main thread writes the state, because the script ends by an error.

        torchrun sends SIGTERM to the other ranks of a node as soon as one has failed. It must not
        end them in the middle of the write, after which they end by themselves.
        """
        return self._lock.locked()

    def _leave_if_asked(self) -> bool:
        """Write the state and end the process, if the agent asked for it. Return whether it did."""
        asked = must_leave(self._folder, self._attempt)
        if asked:
            threading.Thread(target=self._leave, name="keep", daemon=True).start()
        return asked

    def _leave(self) -> None:
        with leaving(self._folder), self._gate.held(_GATE_SECONDS) as whole:
            if whole:
                self._write()
        if whole:
            os._exit(ExitCode.PREEMPTED)

    def _write(self) -> None:
        """Write the state, unless the script is inside an update or before the first one."""
        with self._lock:
            step, start = self._step, time.monotonic()
            if self._written or self._changes or step == self._first:
                return
            self._written = True
            try:
                size = write_state(self._folder, self._part(step), self._state())
            except (OSError, ReportedError, NoRoomError) as error:
                warn(f"the state after update {step} was not kept in memory: {error}")
                return
            if size is not None:
                took = time.monotonic() - start
                print(
                    f"rank {self._ranks.rank}: kept the state after update {step} in memory"
                    f" ({size / 2**20:,.1f} MiB, {took:.2f} s)",
                    flush=True,
                )

    def _part(self, step: int) -> Part:
        ranks = self._ranks
        return Part(
            step=step,
            attempt=self._attempt,
            rank=None,
            writer=ranks.rank,
            world_size=ranks.world_size,
            job=self._job,
        )


@contextmanager
def _terminated(leave: Callable[[], bool], is_ending: Callable[[], bool]) -> Iterator[None]:
    """Return a context in which a thread calls a function at each SIGTERM.

    Python runs a handler between two instructions of the main thread, which may wait in a
    collective for ever. So a thread reads the signal numbers that the interpreter writes at once.

    Args:
        leave: Function that returns whether it ends the process. Otherwise SIGTERM has the effect
            that it had before.
        is_ending: Function that returns whether the process ends by itself soon.
    """
    if threading.current_thread() is not threading.main_thread():
        warn("keep must be called in the main thread, so the state is kept only after an exception")
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if leave() or is_ending():
            return
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL and signal.getsignal(number) is handle:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.signal(signal.SIGTERM, handle)
    descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reading, leave), name="keep", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)
        writing.shutdown(socket.SHUT_RDWR)  # Forked processes have copies of it.
        writing.close()
        watcher.join()
        reading.close()


def _watch(numbers: socket.socket, leave: Callable[[], bool]) -> None:
    """Read signal numbers, one byte each, until the other side closes."""
    while received := numbers.recv(1):
        if received[0] == signal.SIGTERM:
            leave()
