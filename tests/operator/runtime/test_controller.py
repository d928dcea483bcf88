"""Controller with an in-memory API server: the order of reads, writes, actions and Events."""

from datetime import datetime
from typing import Any

import pytest

from ddp_operator.api.job import parse_job
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.cluster.base import ClusterError, ConflictError, Manifest, NameTakenError
from ddp_operator.limits import FIRST_PODS
from ddp_operator.reconcile.pod_view import view_pod
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_wire import contract
from ddp_wire.contract import AGENT_PORT
from ddp_wire.messages import AgentStatus, AttemptOrder, Progress
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import (
    DEFAULTS,
    GUARDED,
    NOW,
    UID,
    after,
    agent_status,
    failed_status,
    job_manifest,
    summary,
)

KEY = ("team-a", "digits")


class Bench:
    """Cluster with one job, a cache, a controller and a clock."""

    def __init__(self, *, watched: bool = True, defaults: Defaults = DEFAULTS, **spec: Any) -> None:
        self.now: datetime = NOW
        self.cluster, self.cache = FakeCluster(), Cache()
        self.cluster.watching = self.cache if watched else None
        self.cache.put_job(self.cluster.apply(job_manifest(**({"nodes": 2} | spec))))
        self.agents = DirectStatuses(self.cluster)
        self.defaults = defaults
        self.start_controller()

    def start_controller(self) -> None:
        """Start a new controller process, whose memory is empty."""
        self.controller = Controller(
            self.cluster, self.cache, self.defaults, lambda: self.now, agents=self.agents
        )

    async def reconcile(self) -> float | None:
        return await self.controller.reconcile(KEY)

    async def reconcile_until_idle(self) -> None:
        """Reconcile until nothing is written."""
        while True:
            before = len(self.cluster.writes)
            await self.reconcile()
            if len(self.cluster.writes) == before:
                return

    async def train(self) -> None:
        """Let all pods run and train."""
        await self.reconcile_until_idle()
        attempt = self.status().attempt
        for index, pod in enumerate(self.cluster.pods()):
            self.set_agent_status(pod["metadata"]["name"], agent_status(index, attempt=attempt))
        await self.reconcile_until_idle()

    def set_agent_status(self, name: str, status: AgentStatus, *, ready: bool = True) -> None:
        """Let a pod run with this agent status."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        changed = self.cluster.change_pod(
            name, phase="Running", podIP="10.0.0.1", conditions=conditions
        )
        self.cluster.agents[changed["metadata"]["uid"]] = status

    def status(self) -> DDPJobStatus:
        return parse_job(self.cluster.jobs[KEY]).status

    def written_since(self, start: int) -> list[str]:
        return self.cluster.writes[start:]


async def test_status_is_written_before_actions_and_events() -> None:
    bench = Bench()
    await bench.reconcile()
    first, *rest = bench.cluster.writes
    assert first == "status digits"
    done = [write for write in rest if write != "event digits"]
    assert done == ["create Service digits", "create Pod digits-0", "create Pod digits-1"]
    assert rest.count("event digits") == 1


async def test_events_are_emitted_even_when_an_action_fails() -> None:
    """The status is already written, so no later reconcile emits them again."""
    bench = Bench()
    bench.cluster.refusals["create Pod"] = ClusterError("quota exceeded", status=403)
    with pytest.raises(ClusterError, match="quota exceeded"):
        await bench.reconcile()
    assert "Started" in [event.reason for event in bench.cluster.events]


async def test_deletions_run_before_creations_because_they_free_names() -> None:
    bench = Bench()
    await bench.train()
    bench.cluster.change_pod("digits-1", phase="Failed", reason="Evicted")
    start = len(bench.cluster.writes)
    await bench.reconcile()
    first, *rest = bench.written_since(start)
    assert first == "status digits"
    deleted, *others = [write for write in rest if write != "event digits"]
    assert deleted == "delete Pod digits-1"
    assert set(others) == {"annotate Pod digits-0 2", "create Pod digits-1"}


async def test_agents_also_get_the_attempt_order_by_a_direct_request() -> None:
    bench = Bench()
    await bench.train()
    bench.set_agent_status("digits-1", failed_status(1), ready=False)
    await bench.reconcile()
    order = AttemptOrder(job_uid=UID, attempt=2)
    assert bench.cluster.orders == [("10.0.0.1", AGENT_PORT, order)] * 2


async def test_agent_status_of_another_job_is_ignored() -> None:
    """The address may belong to a pod of another job by now."""
    bench = Bench()
    await bench.train()
    bench.set_agent_status(
        "digits-0", failed_status(0).model_copy(update={"job_uid": "another-job"})
    )
    await bench.reconcile()
    assert bench.status().attempt == 1


async def test_nothing_is_written_when_nothing_changed() -> None:
    bench = Bench()
    await bench.train()
    start = len(bench.cluster.writes)
    bench.now = after(59)
    await bench.reconcile()
    assert bench.written_since(start) == []


async def test_deleted_job_needs_no_action() -> None:
    bench = Bench()
    bench.cache.forget_job(KEY)
    assert await bench.reconcile() is None
    assert bench.cluster.writes == []


# --- A cache that lags behind -------------------------------------------------------------------


async def test_pods_that_only_a_fresh_list_has_are_not_created_again() -> None:
    """Pods that the cache does not know yet are not created again."""
    bench = Bench(watched=False)
    await bench.reconcile()
    lagging = Cache()
    lagging.put_job(bench.cluster.jobs[KEY])
    start = len(bench.cluster.writes)
    controller = Controller(
        bench.cluster, lagging, DEFAULTS, lambda: NOW, agents=DirectStatuses(bench.cluster)
    )
    await controller.reconcile(KEY)
    assert [w for w in bench.written_since(start) if w.startswith("create Pod")] == []


async def test_pod_missing_only_in_the_cache_is_not_a_fault() -> None:
    bench = Bench()
    await bench.train()
    bench.cluster.watching = None
    bench.cache.drop_child("Pod", bench.cluster.pod("digits-1"))
    await bench.reconcile()
    assert (bench.status().attempt, bench.status().restarts) == (1, 0)


async def test_status_of_a_stale_job_is_not_written() -> None:
    bench = Bench(watched=False)
    bench.cluster.apply(job_manifest(nodes=3))
    with pytest.raises(ConflictError):
        await bench.reconcile()
    assert bench.cluster.writes == ["status digits"], "no action may follow a stale decision"
    assert bench.cluster.events == []


async def test_job_is_read_again_after_a_conflict() -> None:
    bench = Bench(watched=False)
    bench.cluster.apply(job_manifest(nodes=3))
    with pytest.raises(ConflictError):
        await bench.reconcile()
    await bench.controller.refresh(KEY)
    await bench.reconcile()
    assert len(bench.cluster.pods()) == 3


async def test_job_that_is_deleted_at_a_conflict_is_dropped() -> None:
    bench = Bench(watched=False)
    del bench.cluster.jobs[KEY]
    with pytest.raises(ConflictError):
        await bench.reconcile()
    await bench.controller.refresh(KEY)
    assert bench.cache.job(KEY) is None


async def test_written_status_is_cached_without_a_watch() -> None:
    bench = Bench(watched=False)
    await bench.reconcile()
    assert parse_job(bench.cache.job(KEY) or {}).status.attempt == 1
    await bench.reconcile()
    assert bench.status().attempt == 1


async def test_pods_of_an_earlier_job_with_the_same_name_are_not_adopted() -> None:
    bench = Bench()
    await bench.train()
    old = bench.cluster.pods()
    successor = job_manifest(nodes=2)
    successor["metadata"]["uid"] = "second"
    bench.cluster.jobs.clear()
    bench.cache.forget_job(KEY)
    bench.cache.put_job(bench.cluster.apply(successor))
    with pytest.raises(NameTakenError):
        await bench.reconcile()
    assert bench.cluster.pods() == old
    assert (bench.status().attempt, bench.status().replicas) == (1, 0)


async def test_cached_pods_of_an_earlier_job_are_not_counted() -> None:
    bench = Bench()
    await bench.train()
    for name in ("digits-0", "digits-1"):
        bench.cluster.change_pod(name, phase="Succeeded")
    await bench.reconcile_until_idle()
    assert bench.status().replicas == 2
    stray = bench.cluster.pod("digits-0")
    stray["metadata"] |= {"name": "digits-7", "uid": "old"}
    stray["metadata"]["labels"][contract.LABEL_JOB_UID] = "first"
    bench.cache.put_child("Pod", stray)
    await bench.reconcile_until_idle()
    assert bench.status().replicas == 2


# --- Refusals of the API server ------------------------------------------------------------------


async def test_refusal_is_in_the_status_and_one_event() -> None:
    bench = Bench()
    bench.cluster.refusals["create Pod"] = ClusterError("exceeded quota: pods", status=403)
    for _ in range(4):
        with pytest.raises(ClusterError, match="exceeded quota"):
            await bench.reconcile()
    assert summary(bench.status()) == ("Unknown", "Pending", "exceeded quota: pods")
    blocked = [e for e in bench.cluster.events if e.reason == "Blocked"]
    assert [(e.type.value, e.message) for e in blocked] == [("Warning", "exceeded quota: pods")]


async def test_refusal_leaves_the_status_when_it_ends() -> None:
    bench = Bench()
    bench.cluster.refusals["create Pod digits-1"] = ClusterError("exceeded quota", status=403)
    for _ in range(2):
        with pytest.raises(ClusterError):
            await bench.reconcile()
    bench.cluster.refusals.clear()
    await bench.train()
    assert summary(bench.status())[1] == "Running"
    assert len(bench.cluster.pods()) == 2


async def test_refusal_of_one_pod_does_not_block_the_others() -> None:
    bench = Bench(nodes=3)
    bench.cluster.refusals["create Pod digits-0"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert [p["metadata"]["name"] for p in bench.cluster.pods()] == ["digits-1", "digits-2"]


async def test_refusal_of_all_pods_costs_few_requests() -> None:
    bench = Bench(nodes=200)
    bench.cluster.refusals["create Pod"] = ClusterError("exceeded quota: pods", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert len([w for w in bench.cluster.writes if w.startswith("create Pod")]) == FIRST_PODS


async def test_pods_are_not_created_before_their_service() -> None:
    bench = Bench()
    bench.cluster.refusals["create Service"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert bench.cluster.pods() == []


async def test_pods_are_not_created_before_their_network_policy() -> None:
    bench = Bench(defaults=GUARDED)
    bench.cluster.refusals["create NetworkPolicy"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert bench.cluster.pods() == []
    bench.cluster.refusals.clear()
    await bench.reconcile_until_idle()
    assert len(bench.cluster.pods()) == 2
    created = [write for write in bench.cluster.writes if "NetworkPolicy" in write]
    assert created == ["create NetworkPolicy digits"] * 2


def job_secrets(pods: list[Manifest]) -> list[str]:
    return [view_pod(pod).job_secret for pod in pods]


async def test_all_pods_of_a_job_share_one_secret_also_after_a_crash_and_a_lost_pod() -> None:
    bench = Bench(nodes=6)
    bench.cluster.refusals["create Pod digits-5"] = ClusterError("quota", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    bench.cluster.refusals.clear()
    bench.start_controller()
    await bench.train()
    [secret] = set(job_secrets(bench.cluster.pods()))
    assert len(secret) == 32
    bench.cluster.remove_pod("digits-0")
    await bench.reconcile_until_idle()
    assert job_secrets(bench.cluster.pods()) == [secret] * 6
    own = {view_pod(pod).secret for pod in bench.cluster.pods()}
    assert len(own - {secret}) == 6


async def test_network_policy_of_another_owner_does_not_count() -> None:
    bench = Bench(defaults=GUARDED)
    await bench.train()
    bench.cluster.change_owner("NetworkPolicy", "digits", "another-job")
    with pytest.raises(NameTakenError, match="NetworkPolicy digits exists already"):
        await bench.reconcile()


async def test_attempt_is_counted_once_when_its_actions_fail() -> None:
    bench = Bench()
    await bench.train()
    pod = bench.cluster.pod("digits-1")
    bench.cluster.refusals["annotate"] = ClusterError("timeout", status=500)
    bench.cluster.remove_pod("digits-1")
    assert pod["metadata"]["name"] == "digits-1"
    for _ in range(3):
        with pytest.raises(ClusterError):
            await bench.reconcile()
    assert (bench.status().attempt, bench.status().infrastructure_restarts) == (2, 1)
    bench.cluster.refusals.clear()
    await bench.reconcile_until_idle()
    assert (bench.status().attempt, bench.status().infrastructure_restarts) == (2, 1)


# --- Agents -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suspend", "followed"), [(False, {"digits-0", "digits-1"}), (True, set())]
)
async def test_agents_of_active_jobs_are_followed(suspend: bool, followed: set[str]) -> None:
    bench = Bench()
    await bench.train()
    if suspend:
        bench.cluster.apply(job_manifest(nodes=2, suspend=True))
    await bench.reconcile()
    assert bench.agents.followed == followed


async def test_progress_is_written_to_the_status() -> None:
    bench = Bench()
    await bench.train()
    bench.set_agent_status("digits-0", agent_status(0, progress=Progress(step=3, total_steps=4)))
    bench.now = after(5)
    await bench.reconcile()
    progress = bench.status().progress
    assert progress is not None
    assert progress.summary == "3/4 (75%)"


async def test_wait_for_the_root_cause_begins_when_the_operator_first_sees_faults() -> None:
    """The clock of the failed pod's Kubernetes node is an hour ahead."""
    bench = Bench()
    await bench.train()
    failed = failed_status(1, at=after(3600).timestamp(), secondary=True)
    bench.set_agent_status("digits-1", failed, ready=False)
    for seconds, attempt in ((10, 1), (11.9, 1), (12, 2)):
        bench.now = after(seconds)
        await bench.reconcile()
        assert bench.status().attempt == attempt
