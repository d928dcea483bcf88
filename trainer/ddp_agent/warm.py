"""The agent's side of the warm standby: a process that has imported everything, and forks attempts.

A cold torchrun imports torch once for itself and once for each rank before it does anything; a fork
of a process that has done so needs none of it (docs/decisions/0006-standby.md).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddp_wire.machine import cpu_count, threads_per_rank
from ddp_wire.processes import children, descendants
from ddp_wire.variables import Env

if TYPE_CHECKING:  # It would cost the head start.
    from ddp_agent.launcher import Launch

READY_SECONDS = 120.0
"""How long the first attempt waits for the imports; a cold start would need as long."""
_POLL_SECONDS = 0.02


def standby_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of the standby: what must be known before torch is imported."""
    ranks = given.get(Env.PROCS_PER_NODE, "")
    threads = threads_per_rank(cpu_count(), int(ranks) if ranks.isdigit() else 1)
    return {
        "OMP_NUM_THREADS": str(threads),
        **given,
        # A pool of threads that a library starts at import would not survive the fork.
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        # A mere is_available() must not open the driver: a fork could not use the GPU after that.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


class StandbyLostError(RuntimeError):
    """The standby process has ended."""


class Standby:
    """One standby process. It lives through all attempts of its agent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it; it is ready when `wait_ready` says so."""
        orders_in, orders_out = os.pipe()
        words_in, words_out = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "ddp_agent.standby", str(orders_in), str(words_out)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(orders_in, words_out),
            start_new_session=True,
        )
        os.close(orders_in)
        os.close(words_out)
        self._orders, self._words = orders_out, words_in
        self._buffer = b""
        self._exits: dict[int, int] = {}
        self.imports_seconds: float | None = None
        """How long its imports took; None until it is ready."""

    @property
    def pid(self) -> int:
        """Process id of the standby."""
        return self._process.pid

    def wait_ready(self, seconds: float = READY_SECONDS) -> bool:
        """Wait until everything is imported. False when that takes too long.

        Raises:
            StandbyLostError: It failed.
        """
        deadline = time.monotonic() + seconds
        while self.imports_seconds is None and time.monotonic() < deadline:
            self._listen(_POLL_SECONDS)
        return self.imports_seconds is not None

    def fork(self, launch: "Launch") -> int:
        """Fork the launcher of an attempt. Returns its process id.

        Raises:
            StandbyLostError: The standby has ended.
        """
        order = {"arguments": launch.arguments, "environment": launch.environment}
        try:
            os.write(self._orders, json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise StandbyLostError(str(error)) from error
        while True:
            for word in self._listen(READY_SECONDS):
                if "started" in word:
                    return int(word["started"])

    def exit_code(self, pid: int) -> int | None:
        """Exit code of a launcher, negative for a signal, or None while it runs.

        Raises:
            StandbyLostError: The standby has ended, and nobody knows.
        """
        if pid not in self._exits:
            self._listen(0.0)
        return self._exits.get(pid)

    def lives(self) -> bool:
        """Whether it has not ended."""
        try:
            self._listen(0.0)
        except StandbyLostError:
            return False
        return True

    def close(self) -> None:
        """End it, with whatever it has forked."""
        for pid in [*descendants(self.pid), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for descriptor in (self._orders, self._words):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _listen(self, seconds: float) -> list[dict[str, Any]]:
        """Take in what it says within a time; remembers readiness and exits."""
        if not select.select([self._words], [], [], seconds)[0]:
            return []
        chunk = os.read(self._words, 65536)
        if not chunk:
            raise StandbyLostError("the standby process has ended")
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        words: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for word in words:
            if "ready" in word:
                self.imports_seconds = float(word["ready"])
            elif "exited" in word:
                self._exits[int(word["exited"])] = int(word["code"])
        return words


def head_start(environment: Mapping[str, str]) -> Standby | None:
    """A standby that imports while the agent itself does, if the environment asks for one."""
    wanted = environment.get(Env.STANDBY) == "true"
    return Standby(standby_environment(environment)) if wanted else None


class WarmTree:
    """An attempt that was forked from the standby. Like `ProcessTree`, but spares the standby."""

    def __init__(self, standby: Standby, launch: "Launch") -> None:
        self._standby = standby
        self._pid = standby.fork(launch)
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._pid

    def poll(self) -> int | None:
        """Exit code of the launcher (negative: signal) once it has ended."""
        if self.returncode is None:
            try:
                self.returncode = self._standby.exit_code(self._pid)
            except StandbyLostError:
                # Without the standby nobody can wait for the launcher: the attempt is over.
                self.returncode = -signal.SIGKILL
        return self.returncode

    def signal(self, number: signal.Signals) -> None:
        """Signal the launcher; torchrun forwards it to its ranks."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def terminate_ranks(self) -> None:
        """SIGTERM to the ranks themselves, past torchrun."""
        if self.poll() is None:
            for pid in children(self._pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> bool:
        """SIGKILL the launcher and its ranks, orphaned ones too, and wait until they are gone."""
        deadline = time.monotonic() + seconds
        while True:
            living = [p for p in descendants(os.getpid()) if p != self._standby.pid]
            for pid in living:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _reap_orphans(self._standby.pid)
            self.poll()
            if not living:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)


def _reap_orphans(standby: int) -> None:
    """Wait for ended children that have become ours, but leave the standby's end to be read."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == standby:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return
