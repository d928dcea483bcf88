"""Handle of the warm standby: a process that has imported torch and forks attempts.

A cold torchrun imports torch once for itself and once for each rank at its start. A fork of the
standby imports nothing (docs/develop/decisions/0006-standby.md). This module imports as little as
possible, because the standby starts only after these imports.

Process: agent (loop).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ddp_wire.machine import cpu_count, threads_per_rank
from ddp_wire.processes import descendants, is_readable
from ddp_wire.variables import Env

READY_SECONDS = 120.0
"""Maximum seconds for which an attempt waits for the standby's imports. A cold start takes as
long."""
FLAGS = ("-u", "-P")
"""Flags of the agent's own interpreters, so that no module in a user's folder replaces theirs."""
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Environment variable of torch: with 1, `torch.cuda.is_available()` uses NVML and does not open
the driver."""
_POLL_SECONDS = 0.02


def standby_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the standby, with all variables that torch reads at import."""
    ranks = given.get(Env.PROCS_PER_NODE, "")
    threads = threads_per_rank(cpu_count(), int(ranks) if ranks.isdigit() else 1)
    return {
        "OMP_NUM_THREADS": str(threads),
        **given,
        # A thread pool that a library starts at import would be missing in the fork.
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        # torch.cuda.is_available() must not open the driver: a fork could then not use the GPU.
        NVML_CHECK: "1",
    }


class StandbyLostError(RuntimeError):
    """Error: the standby process has ended."""


class StandbyUnusableError(RuntimeError):
    """Error: forks of the standby cannot use the pod's GPUs. The text is the reason."""


class Standby:
    """One standby process, which serves all attempts of its agent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the standby process. It can fork attempts once `wait_ready` has returned True."""
        orders_in, orders_out = os.pipe()
        messages_in, messages_out = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                *FLAGS,
                "-m",
                "ddp_agent.launcher.standby",
                str(orders_in),
                str(messages_out),
            ],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(orders_in, messages_out),
            start_new_session=True,
        )
        os.close(orders_in)
        os.close(messages_out)
        self._orders, self._messages = orders_out, messages_in
        self._buffer = b""
        self._exits: dict[int, int] = {}
        self.imports_seconds: float | None = None
        """Duration of the standby's imports, in seconds. None until it is ready."""

    @property
    def pid(self) -> int:
        """Process id of the standby."""
        return self._process.pid

    def wait_ready(self, seconds: float = READY_SECONDS) -> bool:
        """Wait for the end of the imports. Return False if they exceed the given seconds.

        Raises:
            StandbyLostError: The standby has ended.
        """
        deadline = time.monotonic() + seconds
        while self.imports_seconds is None and time.monotonic() < deadline:
            self._receive(_POLL_SECONDS)
        return self.imports_seconds is not None

    def fork(self, arguments: list[str], environment: Mapping[str, str]) -> int:
        """Fork a launcher with the given torchrun arguments. Return its process id.

        Raises:
            StandbyLostError: The standby has ended.
            StandbyUnusableError: The fork cannot use the pod's GPUs, and has ended.
        """
        order = {"arguments": arguments, "environment": dict(environment)}
        try:
            os.write(self._orders, json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise StandbyLostError(str(error)) from error
        while True:
            for message in self._receive(READY_SECONDS):
                if "started" in message:
                    return int(message["started"])
                if "unusable" in message:
                    raise StandbyUnusableError(message["unusable"])

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a launcher, negative for a signal, or None while it runs.

        Raises:
            StandbyLostError: The standby has ended, so that the exit code is unknown.
        """
        if pid not in self._exits:
            self._receive(0.0)
        return self._exits.get(pid)

    def is_alive(self) -> bool:
        """Return whether the standby process runs."""
        try:
            self._receive(0.0)
        except StandbyLostError:
            return False
        return True

    def close(self) -> None:
        """Kill the standby and all its forks."""
        for pid in [*descendants(self.pid), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for descriptor in (self._orders, self._messages):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _receive(self, seconds: float) -> list[dict[str, Any]]:
        """Return the messages that arrive within a time. Store readiness and exit codes."""
        if not is_readable(self._messages, seconds):
            return []
        chunk = os.read(self._messages, 65536)
        if not chunk:
            raise StandbyLostError("the standby process has ended")
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if "ready" in message:
                self.imports_seconds = float(message["ready"])
            elif "exited" in message:
                self._exits[int(message["exited"])] = int(message["code"])
        return messages


def start_standby_early(environment: Mapping[str, str]) -> Standby | None:
    """Start a standby if the environment enables it, so that it imports while the agent imports."""
    wanted = environment.get(Env.STANDBY) == "true"
    return Standby(standby_environment(environment)) if wanted else None
