"""Run a pod as a local process, with the functions of a kubelet that a worker pod needs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_wire import contract
from ddp_wire.contract import Env
from ddp_wire.expansion import expand
from ddp_wire.processes import descendants

_GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
PROBE_SECONDS = 0.25
"""Seconds between two readiness probes."""
_PYTHON = ("python", "python3")
_NOT_STARTED = 128
"""Exit code that a kubelet reports for a container that could not start."""
_MESSAGE_BYTES = 2048
"""Maximum number of bytes of the log that a kubelet copies into a termination message."""
_TOPOLOGY_VARIABLES = frozenset({Env.NODE_NAME, Env.RACK, Env.ZONE})
"""Variables of the pod's location. A local run sets them to the name of this machine."""


class LocalPod:
    """One worker pod: its process, and its manifest in the form that an API server returns."""

    def __init__(
        self,
        manifest: Manifest,
        home: Path,
        log_file: Path,
        environment: Mapping[str, str],
        on_change: Callable[["LocalPod"], None],
    ) -> None:
        """Create a pod that does not run yet.

        Args:
            manifest: Manifest of the pod.
            home: Folder of the pod's files.
            log_file: File to which the output of the container is appended.
            environment: All environment variables of the process.
            on_change: Called after each change of the manifest.
        """
        self.manifest = manifest
        self._home, self._log_file = home, log_file
        self._environment, self._on_change = dict(environment), on_change
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.manifest["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Return the uid of the pod."""
        return str(self.manifest["metadata"]["uid"])

    @property
    def node(self) -> int:
        """Return the node of the job that the pod serves, or -1 for the pod of an init step."""
        return int(self.manifest["metadata"]["labels"].get(contract.LABEL_NODE_INDEX, -1))

    @property
    def runs(self) -> bool:
        """Return whether the process of the pod runs."""
        return self._process is not None and self._process.returncode is None

    def project_annotations(self) -> None:
        """Update the downward-API file atomically by a rename, as the kubelet does."""
        value = self.manifest["metadata"]["annotations"].get(contract.ANNOTATION_ATTEMPT, "")
        self._home.mkdir(parents=True, exist_ok=True)  # The pod may still wait for its node.
        target = self._home / contract.ATTEMPT_FILE
        temporary = target.with_suffix(".new")
        temporary.write_text(value, encoding="ascii")
        temporary.replace(target)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Start the container, probe it until it ends, and publish how it ended."""
        try:
            self._process = await self._start()
        except OSError as error:  # For example, the disk is full.
            self._set_terminated(_NOT_STARTED, "StartError", str(error))
            return
        self._set_status(phase="Running")
        ended = asyncio.ensure_future(self._process.wait())
        while not ended.done():
            await self._probe(session)
            await asyncio.wait([ended], timeout=PROBE_SECONDS)
        self._kill_orphans()
        code = ended.result()
        code = code if code >= 0 else 128 - code
        self._set_terminated(code, "Completed" if code == 0 else "Error", self._message(code))

    async def _start(self) -> asyncio.subprocess.Process:
        """Start the process of the container.

        Raises:
            OSError: The files of the pod cannot be written.
        """
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self.project_annotations()
        with self._log_file.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *_GUARD,
                str(os.getpid()),
                *_command(self.manifest),
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def delete(self, grace_seconds: float) -> None:
        """Send SIGTERM, then SIGKILL after the grace period. Return when the process has ended."""
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
        """Kill processes that the container left behind. They are now children of this process."""
        marker = f"{Env.POD_INFO_DIR}={self._home}".encode()
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)

    async def _probe(self, session: aiohttp.ClientSession) -> None:
        host, port = self._environment[Env.AGENT_BIND], self._environment.get(Env.AGENT_PORT)
        if port is None:
            return  # Only workers have an agent.
        url = f"http://{host}:{port}/readyz"
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as response:
                ready = response.status == 200  # noqa: PLR2004 (HTTP's OK)
        except (aiohttp.ClientError, TimeoutError):
            ready = False
        if ready != self._ready():
            self._set_status(phase="Running", ready=ready)

    def _ready(self) -> bool:
        conditions = self.manifest["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _message(self, code: int) -> str:
        """Return the termination message. If a failed pod wrote none, return the end of its log."""
        with contextlib.suppress(OSError):
            report = Path(self._environment[Env.TERMINATION_LOG])
            if text := report.read_text(encoding="utf-8", errors="replace"):
                return text
        with contextlib.suppress(OSError), self._log_file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _MESSAGE_BYTES))
            return log.read().decode(errors="replace") if code else ""
        return ""

    def _set_terminated(self, code: int, reason: str, message: str) -> None:
        terminated = {
            "exitCode": code,
            "reason": reason,
            "finishedAt": datetime.now(UTC).isoformat(),
            "message": message,
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
        self._on_change(self)


def _command(manifest: Manifest) -> list[str]:
    """Return the container's command with this process's Python interpreter.

    As by a kubelet, the variables in it are expanded.
    """
    container = manifest["spec"]["containers"][0]
    values = container_environment(manifest)
    words = [*container["command"], *(container.get("args") or [])]
    program, *arguments = [expand(word, values) for word in words]
    return [sys.executable if program in _PYTHON else program, *arguments]


def container_environment(manifest: Manifest) -> dict[str, str]:
    """Return the environment variables of the container, expanded as by a kubelet.

    Raises:
        ClusterError: A variable uses `valueFrom`.
    """
    values: dict[str, str] = {}
    for variable in manifest["spec"]["containers"][0]["env"]:
        name = variable["name"]
        if name in _TOPOLOGY_VARIABLES:
            continue
        if "valueFrom" in variable:
            raise ClusterError(f"spec.env: {name} has valueFrom, which needs a cluster")
        values[name] = expand(variable.get("value") or "", values)
    return values
