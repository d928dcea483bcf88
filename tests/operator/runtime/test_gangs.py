"""Jobs with a gang under the controller, and the discovery of the group objects."""

import asyncio
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs import versions
from ddp_operator.builders.gangs.versions import Gangs, row_of
from ddp_operator.cluster.base import ClusterError, Request
from ddp_operator.runtime import gang_apis
from ddp_operator.runtime.gang_apis import GangApis
from ddp_operator.runtime.workers import WorkerActivity
from tests.operator.fake_cluster import Killed
from tests.operator.reconcile.test_gangs import OFFERED, VERSIONS
from tests.operator.runtime.test_controller import KEY, Bench
from tests.operator.support import job_manifest


def groups(bench: Bench, gang: GangType) -> list[str]:
    return [name for _, name in bench.cluster.children[row_of(VERSIONS[gang])]]


def edit(bench: Bench, gang: GangType, **spec: Any) -> None:
    """Change the spec of the bench's job, as a user does."""
    changed = job_manifest(gang={"type": gang}, **spec)
    bench.cache.put_job(bench.cluster.apply(changed))


@pytest.mark.parametrize("gang", VERSIONS)
async def test_gang_job_creates_and_keeps_and_deletes_its_group_object(gang: GangType) -> None:
    bench = Bench(defaults=OFFERED, gang={"type": gang})
    await bench.train()
    created = [write for write in bench.cluster.writes if write.startswith("create")]
    row = row_of(VERSIONS[gang])
    assert created == [
        "create Service digits",
        f"create {row} digits-1",
        "create Pod digits-0",
        "create Pod digits-1",
    ]
    before = len(bench.cluster.writes)
    await bench.reconcile()
    assert bench.written_since(before) == []
    edit(bench, gang, nodes=3)
    await bench.reconcile_until_idle()
    assert groups(bench, gang) == ["digits-1", "digits-2"]
    for pod in bench.cluster.pods():
        if "deletionTimestamp" in pod["metadata"]:
            bench.cluster.remove_pod(pod["metadata"]["name"])
    await bench.reconcile_until_idle()
    assert groups(bench, gang) == ["digits-2"]
    assert len(bench.cluster.living()) == 3
    edit(bench, gang, nodes=3, suspend=True)
    await bench.reconcile_until_idle()
    assert groups(bench, gang) == ["digits-2"]
    for pod in bench.cluster.pods():
        bench.cluster.remove_pod(pod["metadata"]["name"])
    await bench.reconcile_until_idle()
    assert groups(bench, gang) == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(1, 6))
async def test_operator_that_is_killed_at_its_start_leaves_one_group(
    write: int, after: bool
) -> None:
    bench = Bench(defaults=OFFERED, gang={"type": "Volcano"})
    bench.cluster.kill_at(write, after=after)
    with pytest.raises(Killed):
        await bench.reconcile_until_idle()
    bench.cluster.revive()
    bench.cache.put_job(bench.cluster.jobs[KEY])
    bench.start_controller()
    await bench.reconcile_until_idle()
    assert groups(bench, GangType.VOLCANO) == ["digits-1"]
    pods = bench.cluster.pods()
    assert len(pods) == 2
    named = {p["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for p in pods}
    assert named == {"digits-1"}


class Server:
    """API server that serves these versions, by group."""

    def __init__(self, *served: str) -> None:
        self.served = served
        self.errors: list[ClusterError] = []
        self.asked: list[str] = []

    async def versions(self, group: str) -> tuple[str, ...]:
        self.asked.append(group)
        if self.errors:
            raise self.errors.pop()
        return tuple(one for one in self.served if one.partition("/")[0] == group)


ALL = (GangType.NATIVE, GangType.COSCHEDULING, GangType.VOLCANO)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_apis, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(gang_apis, "_SHORTEST_PAUSE_SECONDS", 0.0)


async def test_discovery_finds_the_gang_apis_that_the_api_server_serves() -> None:
    server = Server("scheduling.k8s.io/v1", versions.NATIVE_1_36, versions.VOLCANO)
    server.errors.append(ClusterError("no answer"))
    found = await GangApis(server.versions, Gangs(types=ALL)).discover()
    assert dict(found.served) == {
        GangType.NATIVE: versions.NATIVE_1_36,
        GangType.VOLCANO: versions.VOLCANO,
    }
    assert found.types == ALL


async def test_installation_without_gangs_sends_no_discovery_request() -> None:
    server = Server()
    assert await GangApis(server.versions, Gangs()).discover() == Gangs()
    assert server.asked == []


async def test_new_served_version_of_the_gang_api_ends_the_wait() -> None:
    server = Server(versions.NATIVE_1_35)
    apis = GangApis(server.versions, Gangs(types=(GangType.NATIVE,)))
    await apis.discover()
    asked = asyncio.Event()
    waiting = asyncio.ensure_future(apis.wait_for_change(asked, 3600))
    async with asyncio.timeout(20):
        asked.set()
        while asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not waiting.done()
        server.errors.append(ClusterError("no answer"))
        asked.set()
        while server.errors:  # noqa: ASYNC110
            await asyncio.sleep(0)
        server.served = (versions.NATIVE_1_36,)
        asked.set()
        sentence = await waiting
    assert sentence.endswith(f"other group objects of gangs than before: {versions.NATIVE_1_36}")


@pytest.mark.parametrize(
    ("request_", "asks"),
    [
        (Request("GET", "podgroups", 404, 0.1), True),
        (Request("POST", "workloads", 404, 0.1), True),
        (Request("DELETE", "podgroups", 404, 0.1), False),
        (Request("GET", "pods", 404, 0.1), False),
        (Request("GET", "podgroups", 200, 0.1), False),
    ],
)
def test_404_for_a_group_object_triggers_a_new_discovery(request_: Request, asks: bool) -> None:
    activity = WorkerActivity()
    activity.record_request(request_)
    assert activity.missing_kind.is_set() is asks
