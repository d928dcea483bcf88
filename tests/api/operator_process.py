"""The operator as a separate process, as the chart runs it, with controls to disturb it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Self

import yaml

from tests.harness.install import ROOT
from tests.harness.ports import free_port
from tests.operator.support import AGENT_CLIENTS

WATCHED = ("ddpjobs", "pods", "services", "networkpolicies")
"""Resources that the operator lists and watches."""
IMAGE = "ghcr.io/example/trainer:test"
ALLOCATOR = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=1048576",
}
"""Variables of the operator's image that choose how memory is allocated."""
_END_SECONDS = 20.0


class OperatorProcess:
    """A process of `python -m ddp_operator.app`. The context manager always kills it at the end."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        settings: Mapping[str, object] | None = None,
        *,
        command_prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the command line.

        Leader election is off unless `settings` name a lease_namespace.

        Args:
            kubeconfig: The kubeconfig of the operator's user.
            log: The file for the process's output.
            settings: Operator settings by name.
            command_prefix: Words in front of the command line.
            environment: Further environment variables.
        """
        self.log_file = log
        self.health_port = free_port()
        given = {
            "trainer_image": IMAGE,
            "health_port": self.health_port,
            "agent_clients": json.dumps([peer.to_manifest() for peer in AGENT_CLIENTS]),
            **(settings or {}),
        }
        given.setdefault("leader_election", "lease_namespace" in given)
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "PYTHONUNBUFFERED": "1",
            **ALLOCATOR,
            **{f"DDP_OPERATOR_{k.upper()}": str(v) for k, v in given.items()},
            **(environment or {}),
        }
        # The kernel kills the operator when this test process dies.
        command = [*command_prefix, sys.executable, "-m", "ddp_operator.app"]
        self._command = ["setpriv", "--pdeathsig", "KILL", *command]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process, also again after it has ended."""
        if self.alive:
            raise RuntimeError("the operator is already running")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, cwd=ROOT
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the last start."""
        if self._process is None:
            raise RuntimeError("the operator was never started")
        return self._process

    @property
    def alive(self) -> bool:
        """Whether the process exists, running or stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The whole log so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def query(self, path: str = "/readyz") -> tuple[int, str]:
        """Return status and text of a health endpoint; (0, reason) without an answer."""
        url = f"http://127.0.0.1:{self.health_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
        except OSError as error:
            return 0, str(error)

    async def answers(self, status: int, text: str, path: str = "/readyz") -> bool:
        """Return whether a health endpoint answers with this status and this text."""
        # The request runs in a thread because the fake agents run on this event loop.
        found, answer = await asyncio.to_thread(self.query, path)
        return found == status and text in answer

    async def wait_until_ready(self, seconds: float = 30.0) -> None:
        """Wait until /readyz answers 200.

        Raises:
            AssertionError: The process ended or was not ready in time; the text ends with its log.
        """
        deadline = time.monotonic() + seconds
        # The request runs in a thread because the fake agents run on this event loop.
        while (answer := await asyncio.to_thread(self.query))[0] != HTTPStatus.OK:
            if not self.alive or time.monotonic() > deadline:
                raise AssertionError(f"the operator is not ready: {answer}\n{self.log[-4000:]}")
            await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process with SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL if it still exists."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_SECONDS)

    async def terminate(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait_for_exit()

    async def wait_for_exit(self, seconds: float = _END_SECONDS) -> int:
        """Wait for the end and return the exit code, which is negative for a signal."""
        return await asyncio.to_thread(self.process.wait, seconds)


def write_kubeconfig(file: Path, server: str, ca_file: Path, user: Mapping[str, str]) -> Path:
    """Write a kubeconfig for a server and a user's credentials, and return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority": str(ca_file)}}
        ],
        "users": [{"name": "test", "user": dict(user)}],
    }
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file
