"""Fake kubelets and fake agents: the test decides when pods are bound, run, exit and vanish."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from aiohttp import web

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.pod_view import PodView, view_pod
from ddp_wire import contract
from ddp_wire.messages import AgentStatus
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    sign_answer,
    sign_request,
)
from tests.api.client import Api, RefusedError, path_of
from tests.scenarios.pods import (
    EndContainer,
    ReportStatus,
    ScriptedPods,
    ended_status,
    running_status,
)

JSON = dict[str, Any]
_GONE = {404, 409}


class FakeAgents:
    """Fake agents of all pods, served from one process on the loopback network.

    Each pod gets an address of 127.0.0.0/8, so pods need no network. An agent answers only while
    it has a status.
    """

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_get("/status", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._statuses: dict[str, AgentStatus] = {}
        self._secrets: dict[str, str] = {}
        self._numbers = itertools.count(2)
        self._revisions = itertools.count(1)
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncIterator["FakeAgents"]:
        """Yield agents that answer requests."""
        agents = cls()
        await agents._runner.setup()
        try:
            yield agents
        finally:
            await agents._runner.cleanup()

    async def serve_pod(self) -> str:
        """Serve the agent of one more pod. Return the pod's address, which no other pod has had."""
        number = next(self._numbers)
        address = f"127.{64 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        await web.TCPSite(self._runner, address, contract.AGENT_PORT).start()
        return address

    def set_secret(self, address: str, secret: str) -> None:
        """Set the secret of the pod at an address."""
        self._secrets[address] = secret

    def set_agent(self, address: str, status: AgentStatus | None) -> None:
        """Set the status of an agent; with None no agent answers at the address."""
        if status is None:
            self._statuses.pop(address, None)
        else:
            self._statuses[address] = status.model_copy(update={"revision": next(self._revisions)})
        self._changed.set()
        self._changed = asyncio.Event()

    def status(self, address: str | None) -> AgentStatus | None:
        """Return the status of the agent at an address, or None without one."""
        return self._statuses.get(address or "")

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        secret, nonce = self._secrets.get(address, ""), request.headers.get(NONCE_HEADER, "")
        expected = sign_request(secret, nonce, request.method, request.path_qs)
        if secret and not is_genuine(request.headers.get(SIGNATURE_HEADER), expected):
            return web.Response(status=403)
        known, wait = int(request.query.get("revision", "-1")), request.query.get("wait", "0")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(wait)):
                while (status := self._statuses.get(address)) and status.revision == known:
                    await self._changed.wait()
        status = self._statuses.get(address)
        if status is None:
            return web.Response(status=503)
        body = status.to_json().encode()
        signature = sign_answer(secret, nonce, 200, body)
        headers = {SIGNATURE_HEADER: signature}
        return web.Response(body=body, content_type="application/json", headers=headers)


class FakeStatuses:
    """The statuses of fake agents as they are, without the delay of a watch."""

    def __init__(self, agents: FakeAgents) -> None:
        self._agents = agents

    def follow(self, key: Key, pods: Sequence[PodView], first: int = 0) -> None:
        """Do nothing, because no watch is needed."""

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        found = {pod.uid: self._agents.status(pod.ip) for pod in pods}
        return {uid: status for uid, status in found.items() if status is not None}

    progress_seconds = 5.0

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        return frozenset(pod.uid for pod in pods if self._agents.status(pod.ip) is None)


class FakeKubelet:
    """The fake kubelets of one namespace.

    Changes to a pod that no longer exists are ignored, as a real kubelet does.
    """

    def __init__(self, api: Api, agents: FakeAgents, namespace: str) -> None:
        self._api, self._agents, self._namespace = api, agents, namespace

    async def pods(self) -> list[JSON]:
        """Return the operator's pods in the namespace, by name."""
        mine = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
        pods = await self._api.list("pods", self._namespace, mine)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def bind(self, pod: JSON) -> None:
        """Bind a pod to the Kubernetes node machine-<node index>, as the scheduler does."""
        if "nodeName" in pod["spec"]:
            return
        metadata = pod["metadata"]
        index = metadata["labels"].get(contract.LABEL_NODE_INDEX, "0")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": f"machine-{index}"},
        }
        await self._call("POST", pod, body, "binding")
        pod["spec"]["nodeName"] = f"machine-{index}"

    async def report_status(self, pod: JSON, status: AgentStatus, *, ready: bool) -> None:
        """Set the pod Running with this agent status. Bind the pod first if necessary."""
        await self.bind(pod)
        address = pod["status"].get("podIP") or await self._agents.serve_pod()
        self._agents.set_secret(address, view_pod(pod).secret)
        self._agents.set_agent(address, status)
        running = running_status(address, ready=ready)
        await self.set_status(pod, {**running, "podIPs": [{"ip": address}]})

    async def end_container(
        self, pod: JSON, code: int, status: AgentStatus | None, reason: str = ""
    ) -> None:
        """Let the worker container exit with a code and an optional termination message."""
        await self.bind(pod)
        self._agents.set_agent(pod["status"].get("podIP", ""), None)
        await self.set_status(pod, ended_status(code, status, reason))

    async def set_status(self, pod: JSON, status: JSON) -> None:
        """Change fields of a pod's status."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._call("PATCH", pod, body, "status")
        pod["status"] = {**pod["status"], **status}

    async def remove(self, pod: JSON) -> None:
        """Remove a deleted pod for good, as a kubelet does after its containers ended."""
        self._agents.set_agent(pod["status"].get("podIP", ""), None)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._call("DELETE", pod, body)

    async def run_scripted(
        self, scripted: ScriptedPods, pods: Sequence[JSON], nodes: int, now: datetime
    ) -> None:
        """Carry out what the simulated pods of a job do in one second."""
        for move in scripted.step(pods, nodes, now):
            if isinstance(move, ReportStatus):
                await self.report_status(move.pod, move.status, ready=move.ready)
            elif isinstance(move, EndContainer):
                await self.end_container(move.pod, move.code, move.status)
            else:
                await self.remove(move.pod)

    async def finish_deletions(self) -> None:
        """Remove all pods that are marked deleted."""
        marked = [pod for pod in await self.pods() if "deletionTimestamp" in pod["metadata"]]
        await asyncio.gather(*(self.remove(pod) for pod in marked))

    async def _call(self, method: str, pod: JSON, body: JSON, part: str | None = None) -> None:
        path = path_of("pods", self._namespace, pod["metadata"]["name"], part)
        try:
            await self._api.call(method, path, body)
        except RefusedError as refused:
            if refused.status not in _GONE:
                raise AssertionError(f"{method} {path} {json.dumps(body)}: {refused}") from refused
