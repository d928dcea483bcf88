"""Supervise the process tree of an attempt: poll, signal, kill and reap its processes.

Process: agent (loop).
"""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod

from ddp_agent.processes.warm import Standby, StandbyLostError
from ddp_wire.processes import children, descendants

_POLL_SECONDS = 0.02


class ProcessTree(ABC):
    """The launcher of an attempt and all its descendants.

    torchrun starts each rank in a new session, and a killed torchrun leaves its ranks behind. So
    this class finds the processes by their parents, which requires that orphans become children of
    this process.
    """

    pid: int
    """Process id of the launcher."""
    returncode: int | None = None
    """Exit code of the launcher, negative for a signal. None until `poll` has noticed its end."""

    @abstractmethod
    def poll(self) -> int | None:
        """Return the launcher's exit code, negative for a signal, or None while it runs."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the launcher. torchrun forwards SIGTERM and SIGINT to its ranks."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate_ranks(self) -> None:
        """Send SIGTERM to the ranks directly."""
        if self.poll() is None:
            for pid in children(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> bool:
        """Send SIGKILL to all processes of the tree, orphans included, and wait for their end.

        Returns:
            Whether all processes have ended. A process in uninterruptible sleep may still exist.
        """
        deadline = time.monotonic() + seconds
        while True:
            running = self._running()
            for pid in running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not running:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)

    @abstractmethod
    def _running(self) -> list[int]:
        """Return the process ids of the tree's running processes."""

    @abstractmethod
    def _reap(self) -> None:
        """Reap all ended processes of the tree, and store the launcher's exit code."""


class ColdTree(ProcessTree):
    """Process tree of an attempt whose launcher is a new process."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(command, env=environment, start_new_session=True)
        self.pid = self._child.pid

    def poll(self) -> int | None:
        """Reap all ended children. Return the launcher's exit code, or None while it runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                self._child.returncode = self.returncode  # Popen must not wait for it again.
        return self.returncode

    def _running(self) -> list[int]:
        return descendants(os.getpid())

    def _reap(self) -> None:
        self.poll()


class WarmTree(ProcessTree):
    """Process tree of an attempt whose launcher is a fork of the standby, without the standby."""

    def __init__(self, standby: Standby, arguments: list[str], environment: dict[str, str]) -> None:
        self._standby = standby
        self.pid = standby.fork(arguments, environment)

    def poll(self) -> int | None:
        """Return the launcher's exit code, negative for a signal, or None while it runs."""
        self._reap_orphans()  # As PID 1 must, for as long as the attempt runs.
        if self.returncode is None:
            try:
                self.returncode = self._standby.exit_code(self.pid)
            except StandbyLostError:
                # Only the standby can wait for the launcher, so the attempt counts as killed.
                self.returncode = -signal.SIGKILL
        return self.returncode

    def _running(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid != self._standby.pid]

    def _reap(self) -> None:
        self.poll()

    def _reap_orphans(self) -> None:
        """Reap ended orphans, but not the standby, which the class `Standby` reaps."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid == self._standby.pid:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)
            except ChildProcessError:
                return
