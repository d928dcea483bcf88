"""A pod that is a local process: the part of a kubelet that a worker pod needs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import aiohttp

from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_wire import contract
from ddp_wire.contract import Env
from ddp_wire.processes import descendants

PROBE_SECONDS = 0.25
_PLACE = frozenset({Env.NODE_NAME, Env.RACK, Env.ZONE})
"""Told of by a cluster alone: here all pods share one machine, whose own name is right."""


class LocalPod:
    """One worker pod: its manifest as the API server would show it, and its process."""

    def __init__(
        self,
        manifest: Manifest,
        home: Path,
        environment: Mapping[str, str],
        changed: Callable[["LocalPod"], None],
    ) -> None:
        """`environment` is complete; `changed` is called after each change of the manifest."""
        self.manifest = manifest
        self._home, self._environment, self._changed = home, dict(environment), changed
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._killing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.manifest["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Uid of the pod."""
        return str(self.manifest["metadata"]["uid"])

    @property
    def log_file(self) -> Path:
        """What the container wrote."""
        return self._home.parent.parent / "logs" / f"{self.name}.log"

    def project_annotations(self) -> None:
        """Bring the downward-API file up to date, by rename as the kubelet does."""
        value = self.manifest["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
        target = self._home / contract.ATTEMPT_FILE
        draft = target.with_suffix(".new")
        draft.write_text(value, encoding="ascii")
        draft.replace(target)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Start the container, probe it until it ends, and say how it ended."""
        self._home.mkdir(parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.project_annotations()
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_command(self.manifest),
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._set_status(phase="Running")
            ended = asyncio.ensure_future(self._process.wait())
            while not ended.done():
                await self._probe(session)
                await asyncio.wait([ended], timeout=PROBE_SECONDS)
        self._kill_orphans()
        self._conclude(ended.result())

    async def delete(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL after the grace period. Returns when the process is gone."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_seconds)
        except TimeoutError:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await process.wait()

    def _kill_orphans(self) -> None:
        """What a dead container leaves behind dies with it; here it has become our own child."""
        mine = f"{Env.POD_INFO_DIR}={self._home}".encode()
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if mine in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    async def _probe(self, session: aiohttp.ClientSession) -> None:
        host, port = self._environment[Env.AGENT_BIND], self._environment[Env.AGENT_PORT]
        url = f"http://{host}:{port}/readyz"
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as answer:
                ready = answer.status == 200  # noqa: PLR2004 (HTTP's OK)
        except (aiohttp.ClientError, TimeoutError):
            ready = False
        if ready != self._ready():
            self._set_status(phase="Running", ready=ready)

    def _ready(self) -> bool:
        conditions = self.manifest["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _conclude(self, returncode: int) -> None:
        code = returncode if returncode >= 0 else 128 - returncode
        word = Path(self._environment[Env.TERMINATION_LOG])
        terminated = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "finishedAt": datetime.now(UTC).isoformat(),
            "message": word.read_text(encoding="utf-8") if word.exists() else "",
        }
        phase = "Succeeded" if code == 0 else "Failed"
        self._set_status(phase=phase, state={"terminated": terminated})

    def _set_status(
        self, *, phase: str, ready: bool = False, state: dict[str, Any] | None = None
    ) -> None:
        self.manifest["status"] = {
            "phase": phase,
            "podIP": self._environment[Env.AGENT_BIND],
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {"name": contract.WORKER_CONTAINER, "state": state or {"running": {}}}
            ],
        }
        self._changed(self)


def _command(manifest: Manifest) -> list[str]:
    """The container's command, by the interpreter that runs this process."""
    command = list(manifest["spec"]["containers"][0]["command"])
    return [sys.executable if command[0] == "python3" else command[0], *command[1:]]


def container_environment(manifest: Manifest) -> dict[str, str]:
    """The container's own variables.

    Raises:
        ClusterError: A variable has a source that only a cluster has.
    """
    found = {}
    for variable in manifest["spec"]["containers"][0]["env"]:
        name = variable["name"]
        if name in _PLACE:
            continue
        if "valueFrom" in variable:
            raise ClusterError(f"spec.env: {name} has valueFrom, which needs a cluster")
        found[name] = variable.get("value", "")
    return found
