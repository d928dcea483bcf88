"""Listening to agents: what is new wakes the job, and nobody else."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.world import PodView
from ddp_operator.runtime import vigil as vigil_module
from ddp_operator.runtime.vigil import Vigil
from ddp_wire.contract import AgentStatus
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import active_job, pod, word

KEY: Key = ("team-a", "digits")
JOB = active_job()


class Listening(FakeCluster):
    """Agents that answer when they have news."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Condition()
        self.open: set[str] = set()
        """Pods whose agents are being asked."""
        self.silent: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set once a pod's agent has not answered."""

    async def say(self, uid: str, said: AgentStatus | None) -> None:
        async with self.changed:
            if said is None:
                self.agents.pop(uid, None)
            else:
                self.agents[uid] = said
            self.changed.notify_all()

    async def await_agent(self, pod: PodView, revision: int) -> AgentStatus | None:
        self.open.add(pod.uid)
        try:
            async with self.changed:
                await self.changed.wait_for(
                    lambda: pod.uid not in self.agents or self.agents[pod.uid].revision != revision
                )
                if pod.uid not in self.agents:
                    self.silent[pod.uid].set()
                return self.agents.get(pod.uid)
        finally:
            self.open.discard(pod.uid)


class Bench:
    def __init__(self) -> None:
        self.cluster = Listening()
        self.woken: asyncio.Queue[Key] = asyncio.Queue()
        self.vigil = Vigil(self.cluster, self.woken.put_nowait)

    async def wakes(self) -> Key:
        return await asyncio.wait_for(self.woken.get(), 5)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(vigil_module, "_FIRST_RETRY_SECONDS", 0.01)
    bench = Bench()
    yield bench
    await bench.vigil.close()
    assert not bench.cluster.open


async def test_news_of_an_agent_wake_its_job_and_are_known(bench: Bench) -> None:
    pods = [pod(JOB, 0), pod(JOB, 1)]
    await bench.cluster.say("uid-digits-1", word(1, phase="Training", revision=3))
    bench.vigil.attend(KEY, pods)
    assert await bench.wakes() == KEY
    await bench.cluster.say("uid-digits-1", word(1, phase="Failed", revision=4))
    assert await bench.wakes() == KEY
    assert {u: w.revision for u, w in bench.vigil.words(pods).items()} == {"uid-digits-1": 4}
    assert bench.woken.empty()


async def test_an_agent_that_does_not_answer_is_asked_again(bench: Bench) -> None:
    bench.vigil.attend(KEY, [pod(JOB, 0)])
    await asyncio.sleep(0)
    await bench.cluster.say("uid-digits-0", word(0, revision=0))
    assert await bench.wakes() == KEY


@pytest.mark.parametrize(("phase", "stays"), [("Training", False), ("Failed", True)])
async def test_of_an_agent_that_falls_silent_only_the_word_of_an_end_stays(
    bench: Bench, phase: str, *, stays: bool
) -> None:
    both = [pod(JOB, 0), pod(JOB, 1)]
    await bench.cluster.say("uid-digits-1", word(1, phase=phase, revision=1))
    bench.vigil.attend(KEY, both)
    await bench.wakes()
    await bench.cluster.say("uid-digits-1", None)
    await asyncio.wait_for(bench.cluster.silent["uid-digits-1"].wait(), 5)
    assert ("uid-digits-1" in bench.vigil.words(both)) is stays
    await bench.cluster.say("uid-digits-1", word(1, phase="Training", revision=1))
    if not stays:
        await bench.wakes()
        assert "uid-digits-1" in bench.vigil.words(both)


async def test_a_pod_that_matters_no_more_is_forgotten(bench: Bench) -> None:
    both = [pod(JOB, 0), pod(JOB, 1)]
    for index in (0, 1):
        await bench.cluster.say(f"uid-digits-{index}", word(index, revision=1))
    bench.vigil.attend(KEY, both)
    await bench.wakes()
    await bench.wakes()
    bench.vigil.attend(KEY, [both[0], pod(JOB, 1, deleting=True)])
    assert bench.vigil.words(both).keys() == {"uid-digits-0"}
    bench.vigil.attend(KEY, [])
    assert bench.vigil.words(both) == {}


async def test_a_pod_is_listened_to_once(bench: Bench) -> None:
    await bench.cluster.say("uid-digits-0", word(0, revision=1))
    for _ in range(3):
        bench.vigil.attend(KEY, [pod(JOB, 0)])
    await bench.wakes()
    await bench.cluster.say("uid-digits-0", word(0, revision=2))
    await bench.wakes()
    assert bench.woken.empty()


async def test_pods_without_an_address_or_that_have_ended_are_left_alone(bench: Bench) -> None:
    bench.vigil.attend(KEY, [pod(JOB, 0, ip=None), pod(JOB, 1, phase="Failed")])
    await asyncio.sleep(0)
    assert bench.cluster.open == set()


class Older(FakeCluster):
    """Agents of a version that knows no revisions, and answers at once."""

    times = 0

    async def await_agent(self, pod: PodView, revision: int) -> AgentStatus | None:
        del pod, revision
        self.times += 1
        await asyncio.sleep(0)
        return word(0)


async def test_an_agent_that_does_not_wait_is_not_asked_in_a_loop() -> None:
    cluster, woken = Older(), asyncio.Queue[Key]()
    vigil = Vigil(cluster, woken.put_nowait)
    vigil.attend(KEY, [pod(JOB, 0)])
    assert await asyncio.wait_for(woken.get(), 5) == KEY
    await asyncio.sleep(0.1)
    await vigil.close()
    assert cluster.times <= 3
