"""Start what the measurements need: a control plane, fake nodes, agents and the operator."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from bench.scale.audit import Audit, Request
from tests.api.client import Api, RefusedError, eventually, path_of
from tests.api.control_plane import OPERATOR, ControlPlane
from tests.api.operator_process import OperatorProcess
from tests.harness import fake_nodes
from tests.harness.install import ROOT, SYSTEM_NAMESPACE

FAKE_NODES = 20
_LIMIT_SECONDS = 300.0
_DELETE_TRIES = 5
_SETTLE_SECONDS = 0.5
"""Seconds until the API server has written all answered requests to the audit log."""


@dataclass
class Stage:
    """A control plane with fake nodes and agents, and the operator as a local process."""

    plane: ControlPlane
    api: Api
    operator: OperatorProcess

    @classmethod
    @asynccontextmanager
    async def up(cls, folder: Path) -> AsyncIterator["Stage"]:
        """Start the control plane, the agents and the operator. Write their logs to a folder."""
        plane = await asyncio.to_thread(ControlPlane.up)
        try:
            await asyncio.to_thread(plane.wait_until_limited)
            await asyncio.to_thread(fake_nodes.add, plane.cluster, FAKE_NODES)
            async with Api.connect(plane.cluster) as api:
                settings = {"lease_namespace": SYSTEM_NAMESPACE, "resync_seconds": 60}
                operator = OperatorProcess(
                    plane.operator_kubeconfig, folder / "operator.log", settings
                )
                with _agents(folder / "agents.log"), operator:
                    await operator.wait_until_ready()
                    yield cls(plane, api, operator)
        finally:
            await asyncio.to_thread(plane.cluster.down)

    @property
    def pid(self) -> int:
        """Process id of the operator."""
        return self.operator.process.pid

    def audit(self) -> Audit:
        """Return the audit log, beginning now."""
        return Audit(self.plane.cluster.audit_log)

    async def operator_requests(self, audit: Audit, namespace: str) -> list[Request]:
        """Return the operator's requests for objects of a namespace."""
        found = await self.all_requests(audit, namespace)
        return [request for request in found if request.user == OPERATOR]

    async def all_requests(self, audit: Audit, namespace: str) -> list[Request]:
        """Return all users' requests for objects of a namespace."""
        await asyncio.sleep(_SETTLE_SECONDS)
        return await asyncio.to_thread(audit.requests, namespace)

    async def is_gone(self, namespace: str) -> bool:
        """Return whether a namespace has no job and no pod."""
        for resource in ("ddpjobs", "pods"):
            found = await self.api.call("GET", path_of(resource, namespace), query={"limit": "1"})
            if found["items"]:
                return False
        return True

    async def delete_jobs(self, namespace: str) -> None:
        """Delete all jobs of a namespace, with one request if that is fast enough.

        Raises:
            RefusedError: The API server refused, or ran into its time limit several times.
        """
        for tries_left in reversed(range(_DELETE_TRIES)):
            try:
                await self.api.call("DELETE", path_of("ddpjobs", namespace))
            except RefusedError as error:
                if error.status != HTTPStatus.GATEWAY_TIMEOUT or not tries_left:
                    raise
            else:
                return

    async def wait_until_gone(self, namespace: str) -> float:
        """Wait until a namespace has no job and no pod. Return the seconds that this took."""
        started = time.monotonic()
        await eventually(lambda: self.is_gone(namespace), "all pods are gone", _LIMIT_SECONDS)
        return time.monotonic() - started


class RunningTimes:
    """Times at which the jobs of a namespace were first seen Running, by the job's name."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.times: dict[str, float] = {}
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator["RunningTimes"]:
        """Watch the jobs of the namespace until the context ends."""
        task = asyncio.ensure_future(self._watch())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait_for(self, jobs: int) -> None:
        """Wait until the given number of jobs were seen Running."""
        async with asyncio.timeout(_LIMIT_SECONDS):
            while len(self.times) < jobs:
                await self._changed.wait()
                self._changed.clear()

    async def _watch(self) -> None:
        path = path_of("ddpjobs", self._namespace)
        while True:  # The API server ends a watch that does not read fast enough.
            async for line in self._api.stream(path, {"watch": "1"}):
                self._see(json.loads(line)["object"])

    def _see(self, job: dict[str, Any]) -> None:
        conditions = job.get("status", {}).get("conditions", [])
        reason = next((c["reason"] for c in conditions if c["type"] == "Succeeded"), "")
        name = job["metadata"]["name"]
        if reason == "Running" and name not in self.times:
            self.times[name] = time.time()
            self._changed.set()


def job(name: str, nodes: int, *, elastic: bool = False) -> dict[str, Any]:
    """Return the manifest of a job with 8 GPUs per node, of which half suffice with `elastic`."""
    limits = {"elastic": {"minNodes": max(1, nodes // 2)}} if elastic else {}
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {
            "nodes": nodes,
            "gpusPerNode": 8,
            "task": "ddp_trainer.tasks.miniresnet:build",
            **limits,
        },
    }


class _agents:  # noqa: N801 (a context manager)
    """Run the process that serves all fake agents."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-m", "bench.scale.agents"], cwd=ROOT, stdout=log, stderr=log
            )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = self._process.poll()
        self._process.kill()
        self._process.wait()
        if ended is not None and kind is None:
            raise RuntimeError(
                f"the figures are wrong, because no agent answered: their process has ended"
                f" with code {ended}, and its log is {self._log}"
            )
