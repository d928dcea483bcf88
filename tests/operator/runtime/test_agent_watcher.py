"""Agent watcher: a new status wakes its job and no other job."""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from ddp_operator import limits
from ddp_operator.cluster.base import AgentAnswer, Key
from ddp_operator.limits import PROGRESS_SECONDS, Backoff
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.agent_watcher import AgentWatcher
from ddp_wire.contract import LONGEST_WAIT_SECONDS
from ddp_wire.messages import AgentStatus
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import active_job, agent_status, pod

KEY: Key = ("team-a", "digits")
JOB = active_job()


class WatchableCluster(FakeCluster):
    """Fake cluster whose agents answer a watch when their status changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Condition()
        self.open: set[str] = set()
        """Uids of the pods with an open watch."""
        self.silent: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Events by pod uid that are set once a watch of the pod's agent got no answer."""
        self.waits: list[float] = []
        """Longest wait of each request, in seconds."""

    async def set_status(self, uid: str, status: AgentStatus | None) -> None:
        async with self.changed:
            if status is None:
                self.agents.pop(uid, None)
            else:
                self.agents[uid] = status
            self.changed.notify_all()

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        self.waits.append(seconds)
        self.open.add(pod.uid)
        try:
            async with self.changed:
                await self.changed.wait_for(
                    lambda: pod.uid not in self.agents or self.agents[pod.uid].revision != revision
                )
                if pod.uid not in self.agents:
                    self.silent[pod.uid].set()
                return AgentAnswer(self.agents.get(pod.uid))
        finally:
            self.open.discard(pod.uid)


class Bench:
    def __init__(self) -> None:
        self.cluster = WatchableCluster()
        self.wakeups: asyncio.Queue[Key] = asyncio.Queue()
        self.watcher = AgentWatcher(self.cluster, self.wakeups.put_nowait)

    async def next_wakeup(self) -> Key:
        return await asyncio.wait_for(self.wakeups.get(), 5)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(limits, "AGENT_RETRIES", Backoff(first=0.01, longest=5.0))
    bench = Bench()
    yield bench
    await bench.watcher.close()
    assert not bench.cluster.open


async def test_new_status_wakes_the_job_and_is_kept(bench: Bench) -> None:
    pods = [pod(JOB, 0), pod(JOB, 1)]
    await bench.cluster.set_status("uid-digits-1", agent_status(1, phase="Training", revision=3))
    bench.watcher.follow(KEY, pods)
    assert await bench.next_wakeup() == KEY
    await bench.cluster.set_status("uid-digits-1", agent_status(1, phase="Failed", revision=4))
    assert await bench.next_wakeup() == KEY
    assert {u: w.revision for u, w in bench.watcher.statuses(pods).items()} == {"uid-digits-1": 4}
    assert bench.wakeups.empty()


async def test_silent_agent_is_polled_again(bench: Bench) -> None:
    bench.watcher.follow(KEY, [pod(JOB, 0)])
    await asyncio.sleep(0)
    await bench.cluster.set_status("uid-digits-0", agent_status(0, revision=0))
    assert await bench.next_wakeup() == KEY


@pytest.mark.parametrize(("phase", "kept"), [("Training", False), ("Failed", True)])
async def test_only_a_final_status_of_an_unreachable_agent_is_kept(
    bench: Bench, phase: str, *, kept: bool
) -> None:
    both = [pod(JOB, 0), pod(JOB, 1)]
    await bench.cluster.set_status("uid-digits-1", agent_status(1, phase=phase, revision=1))
    bench.watcher.follow(KEY, both)
    await bench.next_wakeup()
    await bench.cluster.set_status("uid-digits-1", None)
    await asyncio.wait_for(bench.cluster.silent["uid-digits-1"].wait(), 5)
    if not kept:
        assert await bench.next_wakeup() == KEY
    await asyncio.sleep(0)
    assert ("uid-digits-1" in bench.watcher.statuses(both)) is kept
    assert bench.watcher.silent(both) == {"uid-digits-0", "uid-digits-1"}
    await bench.cluster.set_status("uid-digits-1", agent_status(1, phase="Training", revision=1))
    if not kept:
        await bench.next_wakeup()
        assert "uid-digits-1" in bench.watcher.statuses(both)


async def test_status_of_an_unfollowed_pod_is_dropped(bench: Bench) -> None:
    both = [pod(JOB, 0), pod(JOB, 1)]
    for index in (0, 1):
        await bench.cluster.set_status(f"uid-digits-{index}", agent_status(index, revision=1))
    bench.watcher.follow(KEY, both)
    await bench.next_wakeup()
    await bench.next_wakeup()
    bench.watcher.follow(KEY, [both[0], pod(JOB, 1, phase="Failed")])
    assert bench.watcher.statuses(both).keys() == {"uid-digits-0"}
    bench.watcher.follow(KEY, [])
    assert bench.watcher.statuses(both) == {}


async def test_pod_is_watched_once(bench: Bench) -> None:
    await bench.cluster.set_status("uid-digits-0", agent_status(0, revision=1))
    for _ in range(3):
        bench.watcher.follow(KEY, [pod(JOB, 0)])
    await bench.next_wakeup()
    await bench.cluster.set_status("uid-digits-0", agent_status(0, revision=2))
    await bench.next_wakeup()
    assert bench.wakeups.empty()


async def test_pods_without_an_address_and_ended_pods_are_not_watched(bench: Bench) -> None:
    bench.watcher.follow(KEY, [pod(JOB, 0, ip=None), pod(JOB, 1, phase="Failed")])
    await asyncio.sleep(0)
    assert bench.cluster.open == set()


class NonWaitingCluster(FakeCluster):
    """Fake cluster whose agents have no revisions and answer a watch at once."""

    requests = 0

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        del pod, revision, seconds
        self.requests += 1
        await asyncio.sleep(0)
        return AgentAnswer(agent_status(0))


async def test_agent_that_does_not_wait_is_not_polled_in_a_busy_loop() -> None:
    cluster, wakeups = NonWaitingCluster(), asyncio.Queue[Key]()
    watcher = AgentWatcher(cluster, wakeups.put_nowait)
    watcher.follow(KEY, [pod(JOB, 0)])
    assert await asyncio.wait_for(wakeups.get(), 5) == KEY
    await asyncio.sleep(0.1)
    await watcher.close()
    assert cluster.requests <= 3


async def test_only_node_0_is_polled_every_few_seconds(bench: Bench) -> None:
    """Progress of node 0 has no revision. All other agents answer when their status changes."""
    for index in (0, 1):
        await bench.cluster.set_status(f"uid-digits-{index}", agent_status(index, revision=1))
    bench.watcher.follow(KEY, [pod(JOB, 0), pod(JOB, 1)])
    await bench.next_wakeup()
    await bench.next_wakeup()
    assert set(bench.cluster.waits) == {PROGRESS_SECONDS, LONGEST_WAIT_SECONDS}


class StubbornCluster(FakeCluster):
    """Fake cluster whose agents answer at once with a rising revision and changing content."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.requests = 0
        self.size = size

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        del pod, seconds
        self.requests += 1
        await asyncio.sleep(0)
        return AgentAnswer(agent_status(0, revision=revision + 1), self.size)


def test_hostile_agent_wakes_its_job_at_a_bounded_rate() -> None:
    cluster, wakeups = StubbornCluster(), 0

    def wake(key: Key) -> None:
        nonlocal wakeups
        assert key == KEY
        wakeups += 1

    async def body() -> None:
        watcher = AgentWatcher(cluster, wake)
        watcher.follow(KEY, [pod(JOB, 0)])
        await asyncio.sleep(100)
        await watcher.close()

    run_in_fake_time(body())
    assert wakeups <= 16 + 100 + 1
    assert cluster.requests <= 16 + 100 + 1


def test_agent_is_polled_at_a_bounded_rate_however_many_notices_arrive() -> None:
    """Each notice that node 0's agent counts makes the operator poll all agents of the job."""
    asked = [0, 0]

    class RestlessCluster(FakeCluster):
        async def watch_agent_status(
            self, pod: PodView, revision: int, seconds: float
        ) -> AgentAnswer:
            del seconds
            asked[pod.index] += 1
            await asyncio.sleep(0)
            told = revision + 1 if pod.index == 0 else 7
            return AgentAnswer(agent_status(pod.index, revision=told, unread_notices=asked[0]))

    async def body() -> None:
        watcher = AgentWatcher(RestlessCluster(), lambda _: None)
        watcher.follow(KEY, [pod(JOB, 0), pod(JOB, 1)])
        await asyncio.sleep(100)
        await watcher.close()

    run_in_fake_time(body())
    assert max(asked) <= 16 + 100 + 1


@pytest.mark.parametrize("known", [True, False], ids=["valid", "invalid"])
def test_large_answers_are_read_less_often(known: bool) -> None:
    """Large answers cost the operator more CPU time than many answers."""

    class LargeAnswers(StubbornCluster):
        async def watch_agent_status(
            self, pod: PodView, revision: int, seconds: float
        ) -> AgentAnswer:
            answer = await super().watch_agent_status(pod, revision, seconds)
            return AgentAnswer(answer.status if known else None, 1 << 18)

    cluster = LargeAnswers()

    async def body() -> None:
        watcher = AgentWatcher(cluster, lambda _: None)
        watcher.follow(KEY, [pod(JOB, 0)])
        await asyncio.sleep(160)
        await watcher.close()

    run_in_fake_time(body())
    assert 8 <= cluster.requests <= 12  # 16 tokens each, 1 token per second


def test_many_hostile_jobs_leave_the_operator_time_for_others() -> None:
    woken: list[Key] = []
    hostile: list[Key] = [("team-a", f"job-{number}") for number in range(100)]

    async def body() -> None:
        watcher = AgentWatcher(StubbornCluster(), woken.append)
        for number, key in enumerate(hostile):
            watcher.follow(key, [pod(JOB, i, uid=f"uid-{number}-{i}") for i in range(4)])
        await asyncio.sleep(60)
        del woken[:]
        await asyncio.sleep(10)
        assert len(woken) <= 10 * (100 * 0.5 + 20) + 100
        quiet = ("team-b", "quiet")
        watcher.follow(quiet, [pod(JOB, 0, uid="quiet")])
        await asyncio.sleep(0.1)
        assert quiet in woken
        await watcher.close()

    run_in_fake_time(body())


@pytest.mark.parametrize("jobs", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [0, 1 << 17], ids=["small", "large"])
def test_cost_of_hostile_jobs_does_not_grow_with_their_number(jobs: int, size: int) -> None:
    woken: list[Key] = []

    async def body() -> None:
        cluster = StubbornCluster(size=size)
        watcher = AgentWatcher(cluster, woken.append, status_writes_per_second=20.0)
        for number in range(jobs):
            pods = [pod(JOB, i, uid=f"uid-{number}-{i}") for i in range(4)]
            watcher.follow(("team-a", f"job-{number}"), pods)
        await asyncio.sleep(600)
        del woken[:]
        before = cluster.requests
        await asyncio.sleep(100)
        assert len(woken) <= 100 * (20 + 20) + jobs
        # An agent has ordinary answers of its own, and all agents share 20 per second.
        ordinary = max(1, size >> 14)
        waits = [min(watcher.progress_seconds, LONGEST_WAIT_SECONDS), *[LONGEST_WAIT_SECONDS] * 3]
        own = jobs * sum(math.ceil(100 * 1.25 / (wait * ordinary)) for wait in waits)
        assert cluster.requests - before <= own + 100 * 20 / ordinary
        await watcher.close()

    run_in_fake_time(body())


def test_simultaneous_changes_of_a_thousand_agents_wake_their_job_only_a_few_times() -> None:
    woken: list[float] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        watcher = AgentWatcher(StubbornCluster(), lambda _: woken.append(loop.time()))
        watcher.follow(KEY, [pod(JOB, index) for index in range(1000)])
        await asyncio.sleep(10)
        watcher.follow(KEY, ())
        await asyncio.sleep(10)
        await watcher.close()

    run_in_fake_time(body())
    assert len(woken) <= 16 + 5 * 10 + 1
    assert woken[0] < 0.1  # The first change is never delayed.
    assert max(woken) <= 10.0  # A job that is not followed any more is not woken.


def test_progress_of_a_large_fleet_is_read_less_often() -> None:
    async def body() -> None:
        cluster = WatchableCluster()
        watcher = AgentWatcher(cluster, lambda _: None, status_writes_per_second=20.0)
        assert watcher.progress_seconds == PROGRESS_SECONDS
        for number in range(1000):
            watcher.follow(("team-a", f"job-{number}"), [pod(JOB, 0, uid=f"uid-{number}")])
        assert watcher.progress_seconds == pytest.approx(1000 / (0.9 * 20.0))
        await asyncio.sleep(0)
        assert set(cluster.waits) == {LONGEST_WAIT_SECONDS}  # An agent waits no longer.
        await watcher.close()

    run_in_fake_time(body())


def test_unreachable_agent_is_polled_again_when_its_pod_becomes_ready() -> None:
    """Without this poll the operator would see the ranks join up to 5 s late."""
    asked: list[float] = []

    class SilentCluster(FakeCluster):
        async def watch_agent_status(
            self, pod: PodView, revision: int, seconds: float
        ) -> AgentAnswer:
            del pod, revision, seconds
            asked.append(asyncio.get_running_loop().time())
            return AgentAnswer()

    async def body() -> None:
        watcher = AgentWatcher(SilentCluster(), lambda _: None)
        watcher.follow(KEY, [pod(JOB, 0, ready=False)])
        await asyncio.sleep(20.1)
        before = asyncio.get_running_loop().time()
        watcher.follow(KEY, [pod(JOB, 0, ready=True)])
        await asyncio.sleep(0.1)
        assert asked[-1] == before
        await watcher.close()

    run_in_fake_time(body())


async def test_silence_of_an_agent_counts_only_if_the_operator_reaches_any_agent(
    bench: Bench,
) -> None:
    """Otherwise a NetworkPolicy would make the operator delete pods of tainted nodes by force."""
    pods = [pod(JOB, 0), pod(JOB, 1)]
    bench.watcher.follow(KEY, pods)
    for one in pods:
        await asyncio.wait_for(bench.cluster.silent[one.uid].wait(), 5)
    assert bench.watcher.silent(pods) == frozenset()
    await bench.cluster.set_status("uid-digits-0", agent_status(0, revision=1))
    await bench.next_wakeup()
    assert bench.watcher.silent(pods) == {"uid-digits-1"}
