"""Tests that a new kind of child needs only a row of the table and a builder."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client

from ddp_operator.api.job import DDPJob
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.kinds import KINDS, ChildKind, kinds_in_use
from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import ClusterError, Key, Manifest
from ddp_operator.cluster.kube.cluster import KubeCluster
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.documents import lost_fields
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.child_events import ChildEvents
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity
from tests.operator.fake_api import FakeApi
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import DEFAULTS, active_job

NAME = "ConfigMap"


def build_config_map(job: DDPJob, defaults: Defaults) -> Manifest:
    """Return a ConfigMap with the name of the image."""
    metadata = {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "labels": names.labels(job),
        "ownerReferences": [names.owner_reference(job)],
    }
    data = {"image": defaults.image}
    return {"apiVersion": "v1", "kind": NAME, "metadata": metadata, "data": data}


ROW = ChildKind(
    NAME,
    "v1",
    "configmaps",
    verbs=("get", "list", "watch", "create", "patch"),
    build=build_config_map,
    owned=("data",),
)


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the row to the table."""
    monkeypatch.setitem(KINDS, NAME, ROW)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    await api.start()
    yield api
    await api.stop()


def stored(bench: Bench) -> Manifest:
    """Return the ConfigMap of the bench's job."""
    (found,) = bench.cluster.children[NAME].values()
    return found


async def test_child_that_pods_need_is_created_first_and_then_causes_no_request() -> None:
    bench = Bench()
    await bench.reconcile_until_idle()
    created = [write for write in bench.cluster.writes if write.startswith("create")]
    assert set(created[:2]) == {"create Service digits", "create ConfigMap digits"}
    assert created[2:] == ["create Pod digits-0", "create Pod digits-1"]
    before = len(bench.cluster.writes)
    await bench.reconcile()
    assert len(bench.cluster.writes) == before


async def test_child_that_pods_do_not_need_is_created_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = ChildKind(NAME, "v1", "configmaps", (), build_config_map, ("data",), before_pods=False)
    monkeypatch.setitem(KINDS, NAME, later)
    bench = Bench()
    bench.cluster.refusals["create Service"] = ClusterError("no", status=403)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert bench.cluster.children[NAME] == {}
    bench.cluster.refusals.clear()
    await bench.reconcile_until_idle()
    assert (len(bench.cluster.children[NAME]), len(bench.cluster.pods())) == (1, 2)


@pytest.mark.parametrize("edit", ["data", "deletion"])
async def test_changed_or_deleted_child_is_restored(edit: str) -> None:
    bench = Bench()
    await bench.train()
    before = len(bench.cluster.writes)
    if edit == "data":
        bench.cluster._store_child(NAME, {**stored(bench), "data": {"image": "other"}})
    else:
        bench.cluster._drop_child(NAME, stored(bench))
    await bench.reconcile()
    assert bench.written_since(before) == ["create ConfigMap digits"]


async def test_child_of_another_owner_does_not_count() -> None:
    bench = Bench()
    await bench.train()
    before = len(bench.cluster.writes)
    bench.cluster.change_owner(NAME, "digits", "other")
    bench.cluster.refusals["create ConfigMap"] = ClusterError("taken", status=409)
    with pytest.raises(ClusterError):
        await bench.reconcile()
    assert bench.written_since(before)[0] == "create ConfigMap digits"


async def test_relist_detects_a_deleted_child() -> None:
    bench = Bench(watched=False)
    bench.cache.replace(bench.cluster.snapshot())
    await bench.reconcile()
    key = ("team-a", "digits")
    assert len(bench.cache.children(NAME, key)) == 1
    bench.cluster.children[NAME].clear()
    bench.cache.replace(bench.cluster.snapshot())
    assert bench.cache.children(NAME, key) == []


async def test_objects_of_a_further_kind_are_listed_without_unused_fields(api: FakeApi) -> None:
    configuration = client.Configuration(host=api.address)
    cluster = KubeCluster(ApiConnection(client.ApiClient(configuration)), Agents())
    found = await cluster.snapshot(None)
    await cluster.close()
    assert NAME in found.children
    assert ("GET", "/api/v1/configmaps") in api.requests
    built: dict[str, Any] = build_config_map(active_job(), Defaults("trainer:1"))
    built["metadata"] |= {"uid": "c", "resourceVersion": "1"}
    kept = keep_used_fields(NAME, {**built, "binaryData": {"x": "y"}})
    assert kept["data"] == built["data"]
    assert "binaryData" not in kept
    edited = {**built, "data": {"image": "other", "more": "x"}}
    assert lost_fields(edited, built) == {"data": {"image": "trainer:1", "more": None}}


async def test_objects_of_a_further_kind_are_watched(api: FakeApi) -> None:
    assert ROW in kinds_in_use(DEFAULTS)
    configuration = client.Configuration(host=api.address)
    cluster = KubeCluster(ApiConnection(client.ApiClient(configuration)), Agents())
    sink = ChildEvents(Cache(), WorkQueue[Key](), WorkerActivity())
    watching = asyncio.ensure_future(cluster.watch_children([NAME], [], sink))
    async with asyncio.timeout(20):
        while api.watched() != ["/api/v1/configmaps"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await cluster.close()
