"""Runs and ends a process tree, as the first process of a container must."""

import contextlib
import os
import signal
import subprocess
import time

from ddp_wire.processes import children, descendants

_POLL_SECONDS = 0.02


class ProcessTree:
    """One process and everything that comes of it.

    torchrun starts each rank in a session of its own, and a killed torchrun leaves its ranks
    behind: so the tree is found by parentage, after this process has adopted the orphans.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(command, env=environment, start_new_session=True)
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the root."""
        return self._child.pid

    def poll(self) -> int | None:
        """Reap what has ended. Returns the root's exit code (negative: signal) once it has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._child.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                self._child.returncode = self.returncode  # So that Popen does not wait for it.
        return self.returncode

    def signal(self, number: signal.Signals) -> None:
        """Signal the root; torchrun forwards it to its ranks."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def terminate_ranks(self) -> None:
        """SIGTERM to the ranks themselves, past torchrun."""
        if self.poll() is None:
            for pid in children(self._child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> bool:
        """SIGKILL everything and wait until it is gone.

        Returns:
            Whether all is gone; a process in uninterruptible sleep can outlast any signal.
        """
        deadline = time.monotonic() + seconds
        while True:
            living = descendants(os.getpid())
            for pid in living:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.poll()
            if not living:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
