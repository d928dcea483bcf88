"""Jobs of another controller: the operator reads nothing, writes nothing and counts nothing."""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_operator.api.base import CONTROLLER_NAME
from ddp_operator.cluster.base import Key, Listing, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.job_metrics import JobCollector
from ddp_wire.messages import AgentStatus
from tests.operator.fake_cluster import FakeCluster
from tests.operator.runtime.test_controller import KEY, Bench
from tests.operator.support import agent_status, failed_status, job_manifest

OTHER = "kueue.x-k8s.io/multikueue"


class CountingCluster(FakeCluster):
    """Cluster that counts the reads of pods and agents."""

    reads = 0

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        self.reads += 1
        return await super().list_pods(namespace, labels, expected)


async def play(steps: Sequence[str]) -> Bench:
    """Return a job of this operator after these steps."""
    bench = Bench()
    bench.cluster.__class__ = CountingCluster
    for step in steps:
        if step == "reconcile":
            await bench.reconcile_until_idle()
        elif step == "train":
            await bench.train()
        elif step == "suspend":
            bench.cluster.apply(job_manifest(nodes=2, suspend=True))
        elif step == "edit":
            bench.cluster.apply(job_manifest(nodes=3, image="example/other:2"))
        elif bench.cluster.pods():
            name = bench.cluster.pods()[0]["metadata"]["name"]
            end_pod(bench, name, step)
    return bench


def end_pod(bench: Bench, name: str, step: str) -> None:
    reports: dict[str, AgentStatus] = {
        "fail": failed_status(0, attempt=bench.status().attempt),
        "finish": agent_status(0, attempt=bench.status().attempt, phase="Succeeded"),
    }
    if step in reports:
        bench.set_agent_status(name, reports[step], ready=False)
    else:
        bench.cluster.change_pod(name, phase="Failed", reason="Evicted")


STEPS = st.lists(
    st.sampled_from(["reconcile", "train", "suspend", "edit", "fail", "finish", "evict"]),
    max_size=6,
)
JUNK: st.SearchStrategy[Any] = st.none() | st.integers() | st.text(max_size=3) | st.just([])
STATUSES = st.none() | st.dictionaries(
    st.sampled_from(["attempt", "conditions", "pods", "startTime", "completionTime"]), JUNK
)


@settings(deadline=None, max_examples=60)
@given(STEPS, STATUSES, st.booleans(), st.booleans())
def test_job_of_another_controller_gets_no_action_and_no_write(
    steps: list[str], status: dict[str, Any] | None, valid: bool, evicted: bool
) -> None:
    async def scenario() -> None:
        bench = await play(steps)
        foreign = bench.cluster.jobs[KEY]
        foreign["spec"]["managedBy"] = OTHER
        if not valid:
            del foreign["spec"]["task"]
        if status is not None:
            foreign["status"] = status
        bench.cache.replace(bench.cluster.snapshot())
        for pod in bench.cluster.pods() if evicted else ():
            bench.cluster.change_pod(pod["metadata"]["name"], phase="Failed", reason="Evicted")
        await assert_left_alone(bench)

    asyncio.run(scenario())


async def assert_left_alone(bench: Bench) -> None:
    cluster = bench.cluster
    assert isinstance(cluster, CountingCluster)
    writes, reads, events = list(cluster.writes), cluster.reads, len(cluster.events)
    pods = copy.deepcopy(cluster.children)
    for _ in range(2):
        assert await bench.reconcile() is None
        await bench.controller.refresh(KEY)
        bench.cache.replace(cluster.snapshot())
    assert (cluster.writes, cluster.reads, len(cluster.events)) == (writes, reads, events)
    assert cluster.children == pods
    assert bench.agents.followed == set()
    assert bench.cache.keys() == []
    assert list(JobCollector(bench.cache.jobs).collect()) == list(
        JobCollector(Cache().jobs).collect()
    )


@pytest.mark.parametrize("manager", [None, CONTROLLER_NAME])
async def test_job_runs_if_managed_by_is_absent_or_names_this_operator(manager: str | None) -> None:
    spec: dict[str, Any] = {} if manager is None else {"managedBy": manager}
    bench = Bench(**spec)
    await bench.reconcile_until_idle()
    assert len(bench.cluster.pods()) == 2


def stored(cache: Cache, *jobs: Manifest) -> list[Key]:
    for job in jobs:
        cache.put_job(job)
    return cache.keys()


def test_foreign_job_replaces_an_own_job_of_the_same_name_in_the_cache() -> None:
    """The event of the deletion may have been missed."""
    own, foreign = job_manifest(), job_manifest(managedBy=OTHER)
    foreign["metadata"] |= {"uid": "later", "resourceVersion": "9"}
    cache = Cache()
    assert stored(cache, own) == [KEY]
    assert stored(cache, foreign) == []
    assert cache.drop_job(foreign) == KEY
    own["metadata"] |= {"uid": "last", "resourceVersion": "10"}
    assert stored(cache, own) == [KEY]


def test_job_of_another_controller_owns_no_checkpoint_directory() -> None:
    checkpoint = {"claimName": "shared", "path": "run"}
    foreign = job_manifest("first", managedBy=OTHER, checkpoint=checkpoint)
    own = job_manifest("second", checkpoint=checkpoint)
    own["metadata"]["uid"] = "other"
    cache = Cache()
    stored(cache, foreign, own)
    assert cache.directories.owner(("team-a", "second")) is None
