"""Turn SIGTERM and SIGINT into stop requests."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

SAME_KEY_SECONDS = 0.2
"""Longest time, in seconds, between two SIGINTs that come from the same Ctrl-C.

The terminal sends SIGINT to all processes in the foreground, and wrappers such as `apptainer`
forward the SIGINT that they receive.
"""
INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a process that Ctrl-C ended, as shells report it."""


class StopFlag:
    """A flag that the first SIGTERM or SIGINT sets. A second SIGINT ends the process at once.

    The handler only sets the flag, because it may run at any point, even inside a collective. The
    ranks agree to stop later, after an update, where all ranks are at the same point.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        """Name of the first signal, for example SIGTERM. None before any signal."""
        self.on_terminate: Callable[[], None] = lambda: None
        """Function that a thread calls at each SIGTERM, even if the main thread waits in a
        collective."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal_name is not None

    def install(self) -> None:
        """Install the handler for SIGTERM and SIGINT. Call it in the main thread only."""
        # Python runs a handler between two instructions of the main thread, which may wait in a
        # collective forever. So a thread reads the signal numbers that the interpreter's own
        # handler writes at once.
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
        watcher = threading.Thread(target=_watch, args=(reading, self), name="signals", daemon=True)
        watcher.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def release(self) -> None:
        """Let both signals end the process at once. If one has already arrived, end the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if self.signal_name is not None:
            signal.raise_signal(signal.Signals[self.signal_name])

    def ignore(self) -> None:
        """Ignore signals from now on, except a second SIGINT.

        A late signal then cannot change the exit code, but a person can still end a process that
        hangs.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name is None:
            self.signal_name = signal.Signals(number).name


def _watch(numbers: socket.socket, flag: StopFlag) -> None:
    """Read the signal numbers, one byte each, and end the process at the second SIGINT.

    A second SIGTERM has no effect, because launchers repeat it while ranks still save.
    """
    first: float | None = None
    while received := numbers.recv(1):
        if received[0] == signal.SIGTERM:
            flag.on_terminate()
        if received[0] != signal.SIGINT:
            continue
        now = time.monotonic()
        if first is None:
            first = now
        elif now - first > SAME_KEY_SECONDS:
            print("ended at once by a second SIGINT, without saving", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
