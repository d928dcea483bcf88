"""Serve the agents of all fake pods from one process.

    python -m bench.scale.agents

It needs a running cluster with fake nodes whose pod addresses all belong to this machine.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from bench.scale.conduct import Conduct, be_hostile, be_silent
from ddp_operator.reconcile.pod_view import view_pod
from ddp_wire import contract
from ddp_wire.messages import (
    AgentPhase,
    AgentStatus,
    Heartbeat,
    Progress,
    RankPhase,
    Timeline,
)
from ddp_wire.orders import order_from_text
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    sign_answer,
    sign_request,
)
from tests.api.client import Api
from tests.harness import ending
from tests.harness.cluster import Cluster

RANKS = 8
"""Number of ranks per pod. Their heartbeats make up most of an agent status."""
_NEW_POD_SECONDS = 5.0
_STEPS_PER_SECOND = 10


@dataclass
class _Gang:
    """All fake agents of one job. Like real agents, they begin to train together."""

    nodes: int
    seen: set[int] = field(default_factory=set)
    """Node indices whose pods run."""
    since: float = 0.0
    """Unix seconds at which all pods ran; 0 before."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, index: int) -> None:
        """Record that the pod of a node runs."""
        self.seen.add(index)
        if len(self.seen) >= self.nodes and not self.complete.is_set():
            self.since = time.time()
            self.complete.set()


@dataclass
class _Agent:
    """Fake agent of one pod."""

    uid: str
    job_uid: str
    gang: _Gang
    secret: str
    index: int
    attempt: int
    conduct: Conduct
    first_seen: float = field(default_factory=time.time)

    @property
    def revision(self) -> int:
        return 2 * self.attempt + self.gang.complete.is_set()

    def status(self) -> AgentStatus:
        now, trains = time.time(), self.gang.complete.is_set()
        step = int((now - self.gang.since) * _STEPS_PER_SECOND)
        ranks = [self._heartbeat(local, step, now) for local in range(RANKS)]
        progress = Progress(step=step, total_steps=10_000_000)
        return AgentStatus(
            job_uid=self.job_uid,
            revision=self.revision,
            unread_notices=0 if self.index == 0 else None,
            node_index=self.index,
            attempt=self.attempt,
            warm=True,
            phase=AgentPhase.TRAINING if trains else AgentPhase.WAITING,
            since=self.gang.since if trains else self.first_seen,
            ranks=ranks if trains else [],
            timeline=self._timeline(),
            progress=progress if trains and self.index == 0 else None,
        )

    def _timeline(self) -> Timeline:
        since = self.gang.since if self.gang.complete.is_set() else None
        return Timeline(ordered=self.first_seen, joined=since, stepped=since)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until all pods of the job run, or until the given time has passed."""
        if self.gang.complete.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gang.complete.wait()

    def _heartbeat(self, local: int, step: int, now: float) -> Heartbeat:
        return Heartbeat(
            attempt=self.attempt,
            rank=self.index * RANKS + local,
            local_rank=local,
            phase=RankPhase.TRAINING,
            step=step,
            at=now,
            joined_at=self.gang.since,
            first_step_at=self.gang.since,
        )


class Agents:
    """Fake agents by the address of their pod."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._gangs: dict[str, _Gang] = {}
        self._added = asyncio.Event()

    def see(self, event: dict[str, Any]) -> None:
        """Update the fake agents after a watch event about a pod."""
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            return  # The watch has ended with an error, whose status is a text.
        pod = event["object"]
        address = pod.get("status", {}).get("podIP")
        if not address:
            return
        metadata, known = pod["metadata"], self._agents.get(address)
        if event["type"] == "DELETED":
            if known is not None and known.uid == metadata["uid"]:
                del self._agents[address]
            return
        order = order_from_text(metadata["annotations"][contract.ANNOTATION_ATTEMPT])
        if known is None or known.uid != metadata["uid"]:
            labels = metadata["labels"]
            job_uid, index = labels[contract.LABEL_JOB_UID], int(labels[contract.LABEL_NODE_INDEX])
            gang = self._gangs.setdefault(job_uid, _Gang(_nodes_of(pod)))
            gang.add(index)
            self._agents[address] = _Agent(
                uid=metadata["uid"],
                job_uid=job_uid,
                gang=gang,
                secret=view_pod(pod).secret,
                index=index,
                attempt=order.attempt if order is not None else 0,
                conduct=Conduct.of(metadata["namespace"]),
            )
        elif order is not None:
            known.attempt = order.attempt
        self._added.set()
        self._added = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request as the agent of the pod to which the request was sent."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        agent = await self._find(address)
        if agent is None:
            return web.Response(status=503)
        nonce = request.headers.get(NONCE_HEADER, "")
        expected = sign_request(agent.secret, nonce, request.method, request.path_qs)
        if not is_genuine(request.headers.get(SIGNATURE_HEADER), expected):
            return web.Response(status=403)
        if agent.conduct is Conduct.SILENT:
            return await be_silent()
        if agent.conduct is Conduct.HOSTILE:
            return await be_hostile(
                request, agent.secret, nonce, json.loads(agent.status().to_json())
            )
        if int(request.query.get("revision", "-1")) == agent.revision:
            await agent.wait_for_change(float(request.query.get("wait", "0")))
        body = agent.status().to_json().encode()
        headers = {SIGNATURE_HEADER: sign_answer(agent.secret, nonce, 200, body)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _find(self, address: str) -> _Agent | None:
        """Return the agent of a pod. The pod may run before its watch event arrives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEW_POD_SECONDS):
                while address not in self._agents:
                    await self._added.wait()
        return self._agents.get(address)


def _nodes_of(pod: dict[str, Any]) -> int:
    """Return the number of pods of the job that a pod belongs to."""
    variables = pod["spec"]["containers"][0]["env"]
    return next(int(one["value"]) for one in variables if one["name"] == contract.Env.NODES)


async def serve(cluster: Cluster) -> None:
    """Serve the agents of all pods until this process is killed."""
    agents, app = Agents(), web.Application()
    app.router.add_get("/status", agents.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", contract.AGENT_PORT, backlog=4096).start()  # noqa: S104
        async with Api.connect(cluster) as api:
            mine = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
            while True:  # The API server ends a watch that does not read fast enough.
                async for line in api.stream("/api/v1/pods", {"watch": "1", "labelSelector": mine}):
                    agents.see(json.loads(line))
    finally:
        await runner.cleanup()


def main() -> None:
    """Serve the agents of the cluster on this machine."""
    cluster = Cluster.attach()
    assert cluster is not None, "no cluster runs on this machine"
    asyncio.run(serve(cluster))


if __name__ == "__main__":
    ending.script(main)
