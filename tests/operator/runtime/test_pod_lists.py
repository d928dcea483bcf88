"""Lists of the pods of jobs whose agents became silent."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.cluster.base import AgentAnswer, ClusterError, Key, Listing
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.agent_watcher import AgentWatcher
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.pod_lists import PodLists
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    agent_status,
    job_manifest,
    pod,
    summary,
)

KEY: Key = ("team-a", "digits")
JOB = active_job()


class ListingCluster(FakeCluster):
    """Fake cluster that counts lists. Its agents hold each request open, or are silent."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[float] = []
        """Loop times of the lists of one job's pods."""
        self.list_errors = 0
        """Number of lists that the API server refuses from now on."""
        self.during_list: Callable[[], None] = lambda: None
        """Function to call after the API server has read the pods and before it answers."""
        self.changed = asyncio.Condition()

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        self.lists.append(asyncio.get_running_loop().time())
        if self.list_errors:
            self.list_errors -= 1
            raise ClusterError("no", status=503)
        found = await super().list_pods(namespace, labels, expected)
        self.during_list()
        return found

    async def set_silent(self, *uids: str) -> None:
        async with self.changed:
            for uid in uids:
                self.agents.pop(uid, None)
            self.changed.notify_all()

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        def is_over() -> bool:
            return pod.uid not in self.agents or self.agents[pod.uid].revision != revision

        try:
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(is_over)
        except TimeoutError:
            pass
        return AgentAnswer(self.agents.get(pod.uid))


class Bench:
    """Running job of one node, whose agent the operator follows."""

    def __init__(self) -> None:
        self.cluster, self.cache = ListingCluster(), Cache()
        self.cluster.watching = self.cache
        self.woken: list[Key] = []
        refresh = PodLists(self.cluster, self.cache).refresh
        self.watcher = AgentWatcher(self.cluster, self.woken.append, refresh_pods=refresh)
        loop = asyncio.get_running_loop()
        self.controller = Controller(
            self.cluster,
            self.cache,
            DEFAULTS,
            lambda: NOW + timedelta(seconds=loop.time()),
            agents=self.watcher,
        )

    async def train(self) -> str:
        """Let the job train. Return the uid of its pod."""
        self.cache.put_job(self.cluster.apply(job_manifest(nodes=1)))
        await self.controller.reconcile(KEY)
        ready = [{"type": "Ready", "status": "True"}]
        created = self.cluster.change_pod(
            "digits-0", phase="Running", podIP="10.0.0.1", conditions=ready
        )
        uid: str = created["metadata"]["uid"]
        self.cluster.agents[uid] = agent_status(0, revision=1)
        await self.settle()
        assert self.summary() == "Running"
        self.cluster.lists.clear()
        return uid

    async def settle(self, seconds: float = 5.0) -> None:
        """Reconcile in each second in which the job was queued."""
        await self.controller.reconcile(KEY)
        for _ in range(int(seconds)):
            await asyncio.sleep(1.0)
            if self.woken:
                self.woken.clear()
                await self.controller.reconcile(KEY)

    def summary(self) -> str:
        return summary(parse_job(self.cluster.jobs[KEY]).status)[1]

    def cached(self) -> list[str]:
        return [one["metadata"]["uid"] for one in self.cache.children("Pod", KEY)]


def test_pod_deleted_while_no_watch_ran_is_found_by_its_silent_agent() -> None:
    async def body() -> None:
        bench = Bench()
        uid = await bench.train()
        bench.cluster.watching = None
        bench.cluster.remove_pod("digits-0")
        bench.cluster.watching = bench.cache
        await bench.cluster.set_silent(uid)
        await bench.settle(6)
        status = parse_job(bench.cluster.jobs[KEY]).status
        assert (status.attempt, status.infrastructure_restarts) == (2, 1)
        assert bench.cached() == [bench.cluster.pods()[0]["metadata"]["uid"]]
        assert len(bench.cluster.lists) == 2, "one for the silence, and one before the actions"
        await bench.watcher.close()

    run_in_fake_time(body())


def test_idle_jobs_cause_no_list() -> None:
    async def body() -> None:
        bench = Bench()
        await bench.train()
        await asyncio.sleep(3600.0)
        assert bench.cluster.lists == []
        await bench.watcher.close()

    run_in_fake_time(body())


def test_silent_agent_of_an_existing_pod_causes_one_list() -> None:
    async def body() -> None:
        bench = Bench()
        uid = await bench.train()
        answers, start = bench.cluster.agents[uid], asyncio.get_running_loop().time()
        await bench.cluster.set_silent(uid)
        await bench.settle(600)
        assert bench.cluster.lists == [pytest.approx(start + 2.0, abs=0.5)]
        bench.cluster.lists.clear()
        for _ in range(100):  # An agent that answers now and then may not cause more.
            bench.cluster.agents[uid] = answers
            await bench.settle(6)
            await bench.cluster.set_silent(uid)
            await bench.settle(4)
        assert 8 <= len(bench.cluster.lists) <= 1000 / 60 + 1
        await bench.watcher.close()

    run_in_fake_time(body())


def test_agent_that_answers_again_within_two_seconds_causes_no_list() -> None:
    async def body() -> None:
        bench = Bench()
        uid = await bench.train()
        answers = bench.cluster.agents[uid]
        await bench.cluster.set_silent(uid)
        await asyncio.sleep(0.1)
        bench.cluster.agents[uid] = answers
        await bench.settle(100)
        assert bench.cluster.lists == []
        await bench.watcher.close()

    run_in_fake_time(body())


@pytest.mark.parametrize("change", [{"ready": False}, {"deleting": True}, {"phase": "Failed"}])
def test_pod_whose_state_explains_the_silence_causes_no_list(change: dict[str, object]) -> None:
    """An agent that has never answered may belong to a starting pod, unless the pod is ready."""

    async def body() -> None:
        cluster, listed = ListingCluster(), list[Key]()

        async def refresh(key: Key) -> None:
            listed.append(key)

        watcher = AgentWatcher(cluster, lambda _: None, refresh_pods=refresh)
        watcher.follow(KEY, [pod(JOB, 0, **change)])
        await asyncio.sleep(100.0)
        assert listed == []
        watcher.follow(KEY, [pod(JOB, 0)])
        await asyncio.sleep(100.0)
        assert listed == [KEY]
        await watcher.close()

    run_in_fake_time(body())


def test_refused_list_is_repeated_while_the_agent_is_silent() -> None:
    """The operator may have lost the API server and the agents at the same time."""

    async def body() -> None:
        bench = Bench()
        uid = await bench.train()
        bench.cluster.watching, bench.cluster.list_errors = None, 1
        bench.cluster.remove_pod("digits-0")
        await bench.cluster.set_silent(uid)
        await bench.settle(30)
        assert (len(bench.cluster.lists), bench.summary()) == (1, "Running")
        await bench.settle(40)
        assert bench.summary() != "Running"
        await bench.watcher.close()

    run_in_fake_time(body())


@pytest.mark.slow
def test_network_partition_causes_few_lists() -> None:
    async def body() -> None:
        cluster, listed, woken = ListingCluster(), list[Key](), list[Key]()

        async def refresh(key: Key) -> None:
            listed.append(key)

        watcher = AgentWatcher(cluster, woken.append, refresh_pods=refresh)
        uids = [f"uid-{number}" for number in range(1000)]
        for uid in uids:
            cluster.agents[uid] = agent_status(0, revision=1)
            watcher.follow(("team-a", uid), [pod(JOB, 0, uid=uid)])
        await asyncio.sleep(60.0)
        assert listed == []
        before = dict(cluster.agents)
        await cluster.set_silent(*uids)
        await asyncio.sleep(30.0)
        assert 30 <= len(listed) <= 8 + 30
        assert len(set(listed)) == len(listed)
        cluster.agents |= before  # The network works again.
        await asyncio.sleep(10.0)
        count = len(listed)
        await asyncio.sleep(120.0)
        assert len(listed) == count <= 8 + 40
        await watcher.close()

    run_in_fake_time(body())


async def test_each_list_keeps_pods_that_are_created_during_it() -> None:
    cluster, cache = ListingCluster(), Cache()
    cluster.watching = cache
    job = active_job(nodes=2)
    cache.put_job(cluster.apply(job_manifest(nodes=2)))
    controller = Controller(
        cluster, cache, DEFAULTS, lambda: NOW, agents=AgentWatcher(cluster, lambda _: None)
    )
    await controller.reconcile(KEY)
    gone, stays = (one["metadata"]["name"] for one in cluster.pods())
    cluster.watching = None
    lost = cluster.pod(gone)
    cluster.remove_pod(gone)
    cluster.watching = cache

    def create_again() -> None:
        lost["metadata"]["uid"] = "new"
        cluster._store_child("Pod", lost)

    await PodLists(cluster, cache).read(job)
    assert [one["metadata"]["name"] for one in cache.children("Pod", KEY)] == [stays]
    cluster.during_list = create_again
    await PodLists(cluster, cache).read(job)
    found = {one["metadata"]["name"]: one["metadata"]["uid"] for one in cluster.pods()}
    cached = {one["metadata"]["name"]: one["metadata"]["uid"] for one in cache.children("Pod", KEY)}
    assert cached == found
    assert cached[gone] == "new"
