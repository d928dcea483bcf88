"""Agent watcher: a quiet job costs one open request, however many pods it has."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ddp_operator import limits
from ddp_operator.cluster.base import AgentAnswer, Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.agent_watcher import AgentWatcher
from ddp_wire.messages import AgentStatus
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import active_job, agent_status, pod

KEY: Key = ("team-a", "digits")
JOB = active_job()
NODES = 50


class PollableCluster(FakeCluster):
    """Cluster whose agents hold a request until their revision differs or its time is up."""

    def __init__(self, notices: int | None) -> None:
        super().__init__()
        self.open: list[int] = []
        """Nodes whose agents hold a request open."""
        self.asked: list[int] = []
        """Nodes in the order of the requests to their agents."""
        self._changed = asyncio.Condition()
        self.answers: dict[int, AgentStatus | None] = {
            index: agent_status(index, unread_notices=None if index else notices, revision=1)
            for index in range(NODES)
        }

    async def change(self, index: int, status: AgentStatus | None) -> None:
        async with self._changed:
            self.answers[index] = status
            self._changed.notify_all()

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        def differs() -> bool:
            now = self.answers[pod.index]
            return now is None or now.revision != revision

        self.asked.append(pod.index)
        self.open.append(pod.index)
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(differs)
        except TimeoutError:
            pass
        finally:
            self.open.remove(pod.index)
        return AgentAnswer(self.answers[pod.index])


Change = Callable[[PollableCluster, AgentWatcher], Awaitable[None]]


def open_requests(change: Change | None = None, *, notices: int | None = 0) -> list[int]:
    """Return the nodes with an open request one second after a change of a quiet job."""
    found: list[int] = []

    async def body() -> None:
        cluster = PollableCluster(notices)
        watcher = AgentWatcher(cluster, lambda _: None)
        watcher.follow(KEY, pods())
        await asyncio.sleep(1)
        assert sorted(cluster.open) == list(range(NODES))  # Statuses change while a job starts.
        await asyncio.sleep(60)
        if change is not None:
            assert cluster.open == [0]
            await change(cluster, watcher)
            await asyncio.sleep(1)
        found.extend(sorted(cluster.open))
        assert watcher.statuses(pods()).keys() <= {p.uid for p in pods()}
        await watcher.close()
        assert cluster.open == []

    run_in_fake_time(body())
    return found


def pods(**changes: object) -> list[PodView]:
    return [pod(JOB, index, **(changes if index == 7 else {})) for index in range(NODES)]


def test_quiet_job_has_one_open_request() -> None:
    assert open_requests() == [0]


def test_every_agent_has_an_open_request_if_node_0_counts_no_notices() -> None:
    """Node 0's agent belongs to an older version, which counts no notices."""
    assert open_requests(notices=None) == list(range(NODES))


async def notify(cluster: PollableCluster, watcher: AgentWatcher) -> None:
    del watcher
    await cluster.change(7, agent_status(7, phase="Failed", revision=2))
    await asyncio.sleep(1)
    assert cluster.open == [0]  # Only node 0's agent can say so.
    await cluster.change(0, agent_status(0, unread_notices=1, revision=2))


async def fail(cluster: PollableCluster, watcher: AgentWatcher) -> None:
    del watcher
    await cluster.change(0, agent_status(0, unread_notices=0, phase="Failed", revision=2))


async def replace_node_0(cluster: PollableCluster, watcher: AgentWatcher) -> None:
    del cluster
    watcher.follow(KEY, pods()[1:])


@pytest.mark.parametrize(
    ("change", "asked"),
    [(notify, range(NODES)), (fail, range(NODES)), (replace_node_0, range(1, NODES))],
)
def test_notice_of_any_agent_makes_the_operator_poll_all_agents(
    change: Change, asked: range
) -> None:
    assert open_requests(change) == list(asked)


async def silence_node_0(cluster: PollableCluster, watcher: AgentWatcher) -> None:
    del watcher
    await cluster.change(0, None)


def test_silence_of_node_0_makes_the_operator_poll_all_other_agents() -> None:
    assert set(open_requests(silence_node_0)) >= set(range(1, NODES))


async def lose_readiness(cluster: PollableCluster, watcher: AgentWatcher) -> None:
    cluster.asked.clear()
    watcher.follow(KEY, pods(ready=False))
    await asyncio.sleep(0.1)
    assert cluster.asked[0] == 7


def test_change_of_a_pod_makes_the_operator_poll_its_agent() -> None:
    """An agent that hangs sends no notice, but the kubelet reports its pod as not ready."""
    assert open_requests(lose_readiness) == [0, 7]


def test_job_with_a_notice_becomes_quiet_again() -> None:
    async def notify_and_wait(cluster: PollableCluster, watcher: AgentWatcher) -> None:
        await notify(cluster, watcher)
        await asyncio.sleep(60)

    assert open_requests(notify_and_wait) == [0]


def test_only_node_0_of_a_very_large_job_has_an_open_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All agents would answer within the same second, at the start and at the end."""
    monkeypatch.setattr(limits, "MOST_HELD", NODES - 1)

    async def body() -> None:
        cluster = PollableCluster(0)
        watcher = AgentWatcher(cluster, lambda _: None)
        watcher.follow(KEY, pods())
        await asyncio.sleep(1)
        assert cluster.open == [0]
        assert sorted(cluster.asked)[-NODES + 1 :] == list(range(1, NODES))
        cluster.asked.clear()
        await cluster.change(0, agent_status(0, unread_notices=0, phase="Training", revision=2))
        await asyncio.sleep(1)
        assert set(cluster.asked) == {0}  # No other status has changed.
        for index in range(1, NODES):
            await cluster.change(index, agent_status(index, phase="Failed", revision=2))
        cluster.asked.clear()
        await cluster.change(0, agent_status(0, unread_notices=1, phase="Training", revision=3))
        await asyncio.sleep(3)
        # Each once: their changed statuses do not make the operator ask the others again.
        assert sorted(index for index in cluster.asked if index) == list(range(1, NODES))
        assert {status.phase for status in watcher.statuses(pods()[1:]).values()} == {"Failed"}
        await watcher.close()

    run_in_fake_time(body())
