"""Tests of the cost of requests to agents that never answer."""

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from ddp_operator.cluster.base import AgentAnswer, Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.agent_watcher import AgentWatcher
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import active_job, pod

KEY: Key = ("team-a", "digits")


class CountingCluster(FakeCluster):
    """Cluster whose agents never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: defaultdict[str, int] = defaultdict(int)
        """Number of requests by pod name."""

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        del revision, seconds
        self.requests[pod.name] += 1
        return AgentAnswer()


def test_unreachable_agents_are_polled_less_often_the_more_there_are() -> None:
    """The requests to thousands of silent agents would take CPU time from all jobs."""

    async def body() -> None:
        cluster = CountingCluster()
        watcher = AgentWatcher(cluster, lambda _: None)
        job = active_job(nodes=400)
        pods = [pod(job, index) for index in range(400)]
        watcher.follow(KEY, pods)
        await asyncio.sleep(30.0)
        cluster.requests.clear()
        await asyncio.sleep(40.0)
        first = cluster.requests.pop(pods[0].name)
        assert first == pytest.approx(8, abs=1), "node 0 speaks for the others"
        assert sum(cluster.requests.values()) <= 40.0 * 50.0 * 1.1
        assert len(cluster.requests) == 399, "each is asked again"
        before = cluster.requests[pods[7].name]
        ready = [*pods[:7], replace(pods[7], ready=False), *pods[8:]]
        watcher.follow(KEY, ready)
        await asyncio.sleep(0.01)
        assert cluster.requests[pods[7].name] == before + 1, "a change of the pod ends the silence"
        await watcher.close()

    run_in_fake_time(body())
