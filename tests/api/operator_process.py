"""The operator as a process of its own, as the chart runs it, with all that can happen to one."""

import asyncio
import os
import signal
import socket
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

from tests.tools.install import ROOT

IMAGE = "ghcr.io/example/trainer:test"
_END_SECONDS = 20.0


class OperatorProcess:
    """`python -m ddp_operator.app`. Use it as a context manager: it surely ends."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        settings: Mapping[str, object] | None = None,
        *,
        before: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Leader election is off unless `settings` name a lease_namespace.

        `before` are words in front of the command line, `environment` further variables.
        """
        self.log_file = log
        self.health_port = free_port()
        given = {"trainer_image": IMAGE, "health_port": self.health_port, **(settings or {})}
        given.setdefault("leader_election", "lease_namespace" in given)
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "PYTHONUNBUFFERED": "1",
            **{f"DDP_OPERATOR_{k.upper()}": str(v) for k, v in given.items()},
            **(environment or {}),
        }
        # Should this process be killed, the operator goes with it.
        command = [*before, sys.executable, "-m", "ddp_operator.app"]
        self._command = ["setpriv", "--pdeathsig", "KILL", *command]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, also again after it has ended."""
        if self.alive:
            raise RuntimeError("it runs already")
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, cwd=ROOT
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process as last started."""
        if self._process is None:
            raise RuntimeError("it was never started")
        return self._process

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it has said."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def ask(self, path: str = "/readyz") -> tuple[int, str]:
        """Status and sentence of a health endpoint; (0, why) when there is no answer."""
        url = f"http://127.0.0.1:{self.health_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
        except OSError as error:
            return 0, str(error)

    async def says(self, status: int, words: str, path: str = "/readyz") -> bool:
        """Whether a health endpoint answers with this status and these words."""
        # Asked from a thread: agents answer on the loop of the test.
        found, sentence = await asyncio.to_thread(self.ask, path)
        return found == status and words in sentence

    async def ready(self, seconds: float = 30.0) -> None:
        """Wait until /readyz says so.

        Raises:
            AssertionError: It ended, or was not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + seconds
        # Asked from a thread: agents answer on the loop of the test.
        while (answer := await asyncio.to_thread(self.ask))[0] != HTTPStatus.OK:
            if not self.alive or time.monotonic() > deadline:
                raise AssertionError(f"the operator is not ready: {answer}\n{self.log[-4000:]}")
            await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_SECONDS)

    async def terminate(self) -> int:
        """SIGTERM. Returns its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, seconds: float = _END_SECONDS) -> int:
        """Wait for its end. Returns its exit code; that of a signal is negative."""
        return await asyncio.to_thread(self.process.wait, seconds)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_kubeconfig(file: Path, server: str, ca_file: Path, user: Mapping[str, str]) -> Path:
    """A kubeconfig for a server and a user's credentials, as the format names them."""
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
