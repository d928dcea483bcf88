"""The test plays kubelets and agents: pods are bound, run, end and go as it says."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from aiohttp import web

from ddp_wire import contract
from ddp_wire.contract import AgentStatus
from tests.api.client import Api, RefusedError, path_of
from tests.scenarios.pods import End, PlayedPods, Say, ended_status, running_status

JSON = dict[str, Any]
_GONE = {404, 409}


class Agents:
    """Every address of the loopback network is a pod's; its agent answers there when it has a word.

    The whole network 127.0.0.0/8 is this machine's, so that pods need no network of their own.
    """

    def __init__(self) -> None:
        self._words: dict[str, AgentStatus] = {}
        self._numbers = itertools.count(2)
        self._revisions = itertools.count(1)
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def serving(cls) -> AsyncIterator["Agents"]:
        """Agents that can be asked."""
        agents = cls()
        app = web.Application()
        app.router.add_get("/status", agents._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", contract.AGENT_PORT, backlog=1024).start()  # noqa: S104
            yield agents
        finally:
            await runner.cleanup()

    def address(self) -> str:
        """An address that no pod has had."""
        number = next(self._numbers)
        return f"127.{64 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"

    def say(self, address: str, word: AgentStatus | None) -> None:
        """Give an agent its word; with None nobody answers there."""
        if word is None:
            self._words.pop(address, None)
        else:
            self._words[address] = word.model_copy(update={"revision": next(self._revisions)})
        self._news.set()
        self._news = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        known, wait = int(request.query.get("revision", "-1")), request.query.get("wait", "0")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(wait)):
                while (word := self._words.get(address)) and word.revision == known:
                    await self._news.wait()
        word = self._words.get(address)
        if word is None:
            return web.Response(status=503)
        return web.Response(text=word.to_json(), content_type="application/json")


class Kubelet:
    """The kubelets of one namespace.

    Whatever it does to a pod that is gone meanwhile is nothing, as for a real one.
    """

    def __init__(self, api: Api, agents: Agents, namespace: str) -> None:
        self._api, self._agents, self._namespace = api, agents, namespace

    async def pods(self) -> list[JSON]:
        """The operator's pods here, by name."""
        mine = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
        pods = await self._api.list("pods", self._namespace, mine)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    async def bind(self, pod: JSON) -> None:
        """Give a pod its node, as the scheduler does: that of its index, machine-<index>."""
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
        await self._try("POST", pod, body, "binding")
        pod["spec"]["nodeName"] = f"machine-{index}"

    async def say(self, pod: JSON, word: AgentStatus, *, ready: bool) -> None:
        """The pod runs, and its agent says something; a pod without a node gets one first."""
        await self.bind(pod)
        address = pod["status"].get("podIP") or self._agents.address()
        self._agents.say(address, word)
        running = running_status(address, ready=ready)
        await self.set_status(pod, {**running, "podIPs": [{"ip": address}]})

    async def end(self, pod: JSON, code: int, word: AgentStatus | None, reason: str = "") -> None:
        """The worker container ends with a code, and leaves its agent's last word if it has one."""
        await self.bind(pod)
        self._agents.say(pod["status"].get("podIP", ""), None)
        await self.set_status(pod, ended_status(code, word, reason))

    async def set_status(self, pod: JSON, status: JSON) -> None:
        """Change fields of a pod's status."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._try("PATCH", pod, body, "status")
        pod["status"] = {**pod["status"], **status}

    async def remove(self, pod: JSON) -> None:
        """The pod is gone for good: the last act of a kubelet on a pod that was deleted."""
        self._agents.say(pod["status"].get("podIP", ""), None)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._try("DELETE", pod, body)

    async def play(
        self, played: PlayedPods, pods: Sequence[JSON], nodes: int, now: datetime
    ) -> None:
        """Carry out what the pods of a job of so many nodes do in one second."""
        for move in played.step(pods, nodes, now):
            if isinstance(move, Say):
                await self.say(move.pod, move.word, ready=move.ready)
            elif isinstance(move, End):
                await self.end(move.pod, move.code, move.word)
            else:
                await self.remove(move.pod)

    async def finish_deletions(self) -> None:
        """Let every pod go that is marked deleted."""
        marked = [pod for pod in await self.pods() if "deletionTimestamp" in pod["metadata"]]
        await asyncio.gather(*(self.remove(pod) for pod in marked))

    async def _try(self, method: str, pod: JSON, body: JSON, part: str | None = None) -> None:
        path = path_of("pods", self._namespace, pod["metadata"]["name"], part)
        try:
            await self._api.call(method, path, body)
        except RefusedError as refused:
            if refused.status not in _GONE:
                raise AssertionError(f"{method} {path} {json.dumps(body)}: {refused}") from refused
