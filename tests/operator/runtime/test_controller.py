"""The controller and an API server in memory: the order of reads, writes, actions and events."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.cluster.base import ClusterError, ConflictError, NameTakenError
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_wire import contract
from ddp_wire.contract import AgentStatus, AttemptOrder, Progress
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import (
    DEFAULTS,
    NOW,
    UID,
    after,
    failed_word,
    job_manifest,
    summary,
    word,
)

KEY = ("team-a", "digits")


class Bench:
    """A cluster with one job, its cache, a controller and a clock."""

    def __init__(self, *, watched: bool = True, **spec: Any) -> None:
        self.now: datetime = NOW
        self.cluster, self.cache = FakeCluster(), Cache()
        self.cluster.watching = self.cache if watched else None
        self.cache.put_job(self.cluster.apply(job_manifest(**({"nodes": 2} | spec))))
        self.controller = Controller(self.cluster, self.cache, DEFAULTS, lambda: self.now)

    async def look(self) -> float | None:
        return await self.controller.reconcile(KEY)

    async def settle(self) -> None:
        """Look until a look writes nothing."""
        while True:
            before = len(self.cluster.writes)
            await self.look()
            if len(self.cluster.writes) == before:
                return

    async def train(self) -> None:
        """Let all pods run and train."""
        await self.settle()
        attempt = self.status().attempt
        for index, pod in enumerate(self.cluster.pods()):
            self.say(pod["metadata"]["name"], word(index, attempt=attempt))
        await self.settle()

    def say(self, name: str, said: AgentStatus, *, ready: bool = True) -> None:
        """A pod runs, and its agent says something."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        changed = self.cluster.change_pod(
            name, phase="Running", podIP="10.0.0.1", conditions=conditions
        )
        self.cluster.agents[changed["metadata"]["uid"]] = said

    def status(self) -> DDPJobStatus:
        return parse_job(self.cluster.jobs[KEY]).status

    def written_since(self, start: int) -> list[str]:
        return self.cluster.writes[start:]


async def test_the_status_is_written_before_anything_is_done_or_told() -> None:
    bench = Bench()
    await bench.look()
    first, *rest = bench.cluster.writes
    assert first == "status digits"
    done = [write for write in rest if write != "event digits"]
    assert done == ["create Service digits", "create Pod digits-0", "create Pod digits-1"]
    assert rest.count("event digits") == 1


async def test_what_happened_is_told_even_when_acting_on_it_fails() -> None:
    """The status says it already: no later look finds cause to tell it."""
    bench = Bench()
    bench.cluster.refusals["create Pod"] = ClusterError("quota exceeded", status=403)
    with pytest.raises(ClusterError, match="quota exceeded"):
        await bench.look()
    assert "Started" in [event.reason for event in bench.cluster.events]


async def test_deletions_come_first_because_they_free_names() -> None:
    bench = Bench()
    await bench.train()
    bench.cluster.change_pod("digits-1", phase="Failed", reason="Evicted")
    start = len(bench.cluster.writes)
    await bench.look()
    first, *rest = bench.written_since(start)
    assert first == "status digits"
    deleted, *others = [write for write in rest if write != "event digits"]
    assert deleted == "delete Pod digits-1"
    assert set(others) == {"annotate Pod digits-0 2", "create Pod digits-1"}


async def test_an_agent_is_told_of_the_next_attempt_directly_too() -> None:
    bench = Bench()
    await bench.train()
    bench.say("digits-1", failed_word(1), ready=False)
    await bench.look()
    order = AttemptOrder(job_uid=UID, attempt=2)
    assert bench.cluster.orders == [("10.0.0.1", order)] * 2


async def test_the_word_of_another_jobs_agent_counts_for_nothing() -> None:
    """The address of a pod may have come to another one since it was read."""
    bench = Bench()
    await bench.train()
    bench.say("digits-0", failed_word(0).model_copy(update={"job_uid": "somebody-else"}))
    await bench.look()
    assert bench.status().attempt == 1


async def test_nothing_is_written_when_nothing_has_changed() -> None:
    bench = Bench()
    await bench.train()
    start = len(bench.cluster.writes)
    bench.now = after(60)
    await bench.look()
    assert bench.written_since(start) == []


async def test_a_job_that_is_gone_is_nothing_to_do() -> None:
    bench = Bench()
    bench.cache.forget_job(KEY)
    assert await bench.look() is None
    assert bench.cluster.writes == []


async def test_a_job_that_breaks_a_rule_is_told_so_once_and_left_alone() -> None:
    bench = Bench()
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    for _ in range(3):
        assert await bench.look() is None
    assert bench.cluster.writes == ["status digits", "event digits"]
    status = DDPJobStatus.model_validate(bench.cluster.statuses[-1])
    sentence = "spec: one of task and command must be stated"
    assert summary(status) == ("Unknown", "Invalid", sentence)
    assert status.observed_generation == 2
    assert [(e.reason, e.message) for e in bench.cluster.events] == [("Invalid", sentence)]


async def test_a_job_that_broke_a_rule_begins_once_it_is_mended() -> None:
    bench = Bench()
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    await bench.look()
    bench.cluster.apply(job_manifest(nodes=2))
    await bench.settle()
    assert summary(bench.status())[1] == "Pending"
    assert len(bench.cluster.pods()) == 2


@pytest.mark.parametrize(
    "status",
    [
        {"attempt": "what another version wrote"},
        {
            "conditions": [
                {
                    "type": "Succeeded",
                    "status": "True",
                    "reason": "Completed",
                    "lastTransitionTime": "2026-03-01T12:00:00Z",
                }
            ]
        },
    ],
    ids=["unreadable", "finished"],
)
async def test_a_status_that_is_not_to_be_touched_is_left_alone(status: dict[str, Any]) -> None:
    bench = Bench()
    bench.cluster.jobs[KEY]["status"] = status
    bench.cluster.apply({**job_manifest(), "spec": {"nodes": 2}})
    assert await bench.look() is None
    assert bench.cluster.writes == []


# --- A cache that lags behind -------------------------------------------------------------------


async def test_what_changes_the_world_is_decided_on_a_fresh_list() -> None:
    """The cache has not heard of the pods yet: they are not created again."""
    bench = Bench(watched=False)
    await bench.look()
    lagging = Cache()
    lagging.put_job(bench.cluster.jobs[KEY])
    start = len(bench.cluster.writes)
    controller = Controller(bench.cluster, lagging, DEFAULTS, lambda: NOW)
    await controller.reconcile(KEY)
    assert [w for w in bench.written_since(start) if w.startswith("create Pod")] == []


async def test_a_pod_that_only_the_cache_has_lost_is_no_loss() -> None:
    bench = Bench()
    await bench.train()
    bench.cluster.watching = None
    bench.cache.drop_child("Pod", bench.cluster.pod("digits-1"))
    await bench.look()
    assert (bench.status().attempt, bench.status().restarts) == (1, 0)


async def test_a_status_is_not_written_over_one_that_the_cache_does_not_know() -> None:
    bench = Bench(watched=False)
    bench.cluster.apply(job_manifest(nodes=3))
    with pytest.raises(ConflictError):
        await bench.look()
    assert bench.cluster.writes == ["status digits"], "nothing is done after a stale decision"
    assert bench.cluster.events == []


async def test_after_a_conflict_the_job_is_read_anew() -> None:
    bench = Bench(watched=False)
    bench.cluster.apply(job_manifest(nodes=3))
    with pytest.raises(ConflictError):
        await bench.look()
    await bench.controller.refresh(KEY)
    await bench.look()
    assert len(bench.cluster.pods()) == 3


async def test_a_job_that_is_gone_after_a_conflict_is_forgotten() -> None:
    bench = Bench(watched=False)
    del bench.cluster.jobs[KEY]
    with pytest.raises(ConflictError):
        await bench.look()
    await bench.controller.refresh(KEY)
    assert bench.cache.job(KEY) is None


async def test_a_status_that_was_just_written_is_known_without_a_watch() -> None:
    bench = Bench(watched=False)
    await bench.look()
    assert parse_job(bench.cache.job(KEY) or {}).status.attempt == 1
    await bench.look()
    assert bench.status().attempt == 1


async def test_pods_of_an_earlier_job_of_the_same_name_are_not_this_jobs() -> None:
    bench = Bench()
    await bench.train()
    old = bench.cluster.pods()
    successor = job_manifest(nodes=2)
    successor["metadata"]["uid"] = "second"
    bench.cluster.jobs.clear()
    bench.cache.forget_job(KEY)
    bench.cache.put_job(bench.cluster.apply(successor))
    with pytest.raises(NameTakenError):
        await bench.look()
    assert bench.cluster.pods() == old
    assert (bench.status().attempt, bench.status().replicas) == (1, 0)


async def test_pods_of_an_earlier_job_that_the_cache_still_holds_are_not_counted() -> None:
    bench = Bench()
    await bench.train()
    for name in ("digits-0", "digits-1"):
        bench.cluster.change_pod(name, phase="Succeeded")
    await bench.settle()
    assert bench.status().replicas == 2
    stray = bench.cluster.pod("digits-0")
    stray["metadata"] |= {"name": "digits-7", "uid": "old"}
    stray["metadata"]["labels"][contract.LABEL_JOB_UID] = "first"
    bench.cache.put_child("Pod", stray)
    await bench.settle()
    assert bench.status().replicas == 2


# --- What the API server refuses ------------------------------------------------------------------


async def test_what_the_api_server_refuses_stands_in_the_status_and_is_told_once() -> None:
    bench = Bench()
    bench.cluster.refusals["create Pod"] = ClusterError("exceeded quota: pods", status=403)
    for _ in range(4):
        with pytest.raises(ClusterError, match="exceeded quota"):
            await bench.look()
    assert summary(bench.status()) == ("Unknown", "Pending", "exceeded quota: pods")
    told = [e for e in bench.cluster.events if e.reason == "Blocked"]
    assert [(e.type.value, e.message) for e in told] == [("Warning", "exceeded quota: pods")]


async def test_the_refusal_leaves_the_status_when_it_is_over() -> None:
    bench = Bench()
    bench.cluster.refusals["create Pod digits-1"] = ClusterError("exceeded quota", status=403)
    for _ in range(2):
        with pytest.raises(ClusterError):
            await bench.look()
    bench.cluster.refusals.clear()
    await bench.train()
    assert summary(bench.status())[1] == "Running"
    assert len(bench.cluster.pods()) == 2


async def test_a_refusal_of_one_pod_does_not_keep_the_others_from_being_created() -> None:
    bench = Bench(nodes=3)
    bench.cluster.refusals["create Pod digits-0"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.look()
    assert [p["metadata"]["name"] for p in bench.cluster.pods()] == ["digits-1", "digits-2"]


async def test_pods_are_not_created_before_their_service() -> None:
    bench = Bench()
    bench.cluster.refusals["create Service"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.look()
    assert bench.cluster.pods() == []


async def test_an_attempt_is_counted_once_though_acting_on_it_fails() -> None:
    bench = Bench()
    await bench.train()
    pod = bench.cluster.pod("digits-1")
    bench.cluster.refusals["annotate"] = ClusterError("timeout", status=500)
    bench.cluster.remove_pod("digits-1")
    assert pod["metadata"]["name"] == "digits-1"
    for _ in range(3):
        with pytest.raises(ClusterError):
            await bench.look()
    assert (bench.status().attempt, bench.status().infrastructure_restarts) == (2, 1)
    bench.cluster.refusals.clear()
    await bench.settle()
    assert (bench.status().attempt, bench.status().infrastructure_restarts) == (2, 1)


# --- Which agents are asked -----------------------------------------------------------------------


async def test_all_agents_are_asked_until_all_ranks_train_and_then_that_of_node_0() -> None:
    bench = Bench(nodes=3)
    await bench.settle()
    for index in range(3):
        bench.say(f"digits-{index}", word(index, phase="Starting"), ready=False)
    bench.cluster.asked.clear()
    await bench.look()
    assert set(bench.cluster.asked) == {"digits-0", "digits-1", "digits-2"}
    await bench.train()
    bench.cluster.asked.clear()
    await bench.look()
    assert bench.cluster.asked == ["digits-0"]


async def test_an_agent_is_asked_once_per_look_even_when_the_look_is_repeated() -> None:
    """One on a lost node takes its time not to answer."""
    bench = Bench()
    await bench.train()
    bench.say("digits-1", failed_word(1), ready=False)
    bench.cluster.asked.clear()
    before = len(bench.cluster.writes)
    await bench.look()
    assert [w for w in bench.written_since(before) if w.startswith("annotate")], "it acted"
    assert sorted(bench.cluster.asked) == ["digits-0", "digits-1"]


async def test_all_agents_are_asked_when_a_pod_is_not_ready_any_more() -> None:
    bench = Bench()
    await bench.train()
    bench.say("digits-1", word(1), ready=False)
    bench.cluster.asked.clear()
    await bench.look()
    assert set(bench.cluster.asked) == {"digits-0", "digits-1"}


@pytest.mark.parametrize("spec", [{"suspend": True}, {}], ids=["suspended", "has no address"])
async def test_agents_that_cannot_matter_are_not_asked(spec: dict[str, Any]) -> None:
    bench = Bench(**spec)
    await bench.settle()
    await bench.look()
    assert bench.cluster.asked == []


async def test_progress_reaches_the_status() -> None:
    bench = Bench()
    await bench.train()
    bench.say("digits-0", word(0, progress=Progress(step=3, total_steps=4)))
    bench.now = after(5)
    await bench.look()
    progress = bench.status().progress
    assert progress is not None
    assert progress.summary == "3/4 (75%)"
