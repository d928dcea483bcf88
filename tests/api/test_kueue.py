"""Jobs under Kueue on a real API server, with a stand-in that plays Kueue's rules.

The API server, the operator's rights and its admission policy are real, and so is the call of the
webhook. Kueue's controller and the kubelets are played: see `tests.scenarios.kueue`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.kueue import GROUP, QUEUE, RETRIABLE
from ddp_operator.builders.gangs.versions import KUEUE, Gangs
from ddp_operator.cluster.base import ClusterError
from ddp_operator.runtime.gang_apis import GangApis
from tests.api.client import Api, eventually, path_of
from tests.api.control_plane import ControlPlane
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.invariants import violations
from tests.api.kueue import (
    WORKLOADS,
    KueueJob,
    kueue_webhook,
    wait_for_webhook,
    workload_kind,
    workload_object,
)
from tests.scenarios.flows import NAME
from tests.scenarios.kueue import Kueue
from tests.scenarios.kueue_runs import SPECS

pytestmark = pytest.mark.api

JSON = dict[str, Any]
FIXED = "fixed size"


@pytest.fixture(autouse=True)
async def webhook(api: Api, namespace: str) -> AsyncIterator[None]:
    """Let the API server call Kueue's webhook."""
    async with kueue_webhook(api), workload_kind(api):
        await wait_for_webhook(api, namespace)
        yield


async def group_names(job: KueueJob) -> set[str]:
    labels = [pod["metadata"]["labels"] for pod in await job.pods()]
    return {one[GROUP] for one in labels if GROUP in one}


async def test_gang_starts_when_the_queue_admits_it(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = KueueJob(environment, namespace, Kueue(quota=2))
    await job.start(FIXED)
    await job.pass_seconds(3)
    reason, message = await job.summary()
    assert reason == "Pending"
    assert "0 of 3 pods of the Kueue group" in message
    assert ": the queue team has not admitted it" in message
    for pod in await job.pods():
        assert pod["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
        assert pod["metadata"]["labels"][QUEUE] == "team"
    job.kueue.quota = 3
    await job.pass_seconds(4)
    assert (await job.summary())[0] == "Running"
    assert job.kueue.faults == []


async def test_message_quotes_the_workload(
    environment: OperatorEnvironment, api: Api, namespace: str
) -> None:
    job = KueueJob(environment, namespace, Kueue(quota=0))
    job.new_operator().activate()
    asked = GangApis(environment.cluster.served_versions, Gangs(types=(GangType.KUEUE,)))
    assert dict((await asked.discover()).served) == {GangType.KUEUE: KUEUE}
    await job.start(FIXED)
    await job.pass_seconds(1)
    [group] = await group_names(job)
    reserved = {"type": "QuotaReserved", "status": "False", "message": "no room for 3 pods"}
    path = f"{WORKLOADS.format(namespace=namespace)}/{group}"
    await api.call("PATCH", path, {"status": {"conditions": [reserved]}})
    await job.pass_seconds(8)
    assert ": no room for 3 pods; " in (await job.summary())[1]


async def test_suspension_of_a_gang_that_waits_leaves_no_pod_behind(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = KueueJob(environment, namespace, Kueue(quota=0))
    await job.start(FIXED)
    await job.pass_seconds(2)
    assert len(await job.pods()) == 3
    await job.edit(suspend=True)
    await job.pass_seconds(3)
    assert await job.pods() == []


@pytest.mark.parametrize("quota", [3, 0], ids=["running", "waiting"])
async def test_deleted_job_leaves_no_pod_behind(
    environment: OperatorEnvironment, api: Api, namespace: str, quota: int
) -> None:
    job = KueueJob(environment, namespace, Kueue(quota))
    await job.start(FIXED)
    await job.pass_seconds(4)
    await api.call("DELETE", path_of("ddpjobs", namespace, NAME))

    async def all_are_deleted() -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in await job.pods())

    await eventually(all_are_deleted, "the garbage collector deletes the pods")
    await job.pass_seconds(3)
    assert await job.pods() == []


async def test_operator_deletes_only_workloads_of_its_pods(
    control_plane: ControlPlane, environment: OperatorEnvironment, api: Api, namespace: str
) -> None:
    await asyncio.to_thread(control_plane.wait_until_limited)
    job = KueueJob(environment, namespace, Kueue(quota=3))
    await job.start(FIXED)
    await job.pass_seconds(1)
    [group] = await group_names(job)
    path = WORKLOADS.format(namespace=namespace)
    other = workload_object("other", (await job.pods())[0])
    other["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["command"] = ["sleep"]
    await api.call("POST", path, other)
    job.new_operator().activate()
    with pytest.raises(ClusterError, match="may write only pods"):
        await environment.cluster.delete_workload(namespace, "other")
    await environment.cluster.delete_workload(namespace, group)
    await environment.cluster.delete_workload(namespace, "of-nobody")
    assert await api.find(f"{path}/{group}") is None


async def test_suspension_ends_the_group_and_resumption_takes_a_new_one(
    environment: OperatorEnvironment, namespace: str
) -> None:
    job = KueueJob(environment, namespace, Kueue(quota=3))
    await job.start(FIXED)
    await job.pass_seconds(4)
    [first] = await group_names(job)
    await job.edit(suspend=True)
    await job.settle()
    ends = [p for p in await job.pods() if RETRIABLE in p["metadata"]["annotations"]]
    assert [pod["metadata"]["name"] for pod in ends] == [f"{NAME}-0"]
    await job.pass_seconds(4)
    assert await job.pods() == []
    await job.edit(suspend=False)
    await job.pass_seconds(4)
    [second] = await group_names(job)
    assert second != first
    assert (await job.summary())[0] == "Running"
    assert job.kueue.faults == []


async def run(
    environment: OperatorEnvironment, namespace: str, name: str, seed: int, disturbances: int
) -> str:
    """Play one disturbed job. Return its figures in one line."""
    space = f"{namespace[:40]}-{name.replace(' ', '-')[:12]}-{seed}"
    await environment.api.create_namespace(space)
    job = KueueJob(environment, space, Kueue(quota=8), seed=seed)
    await job.start(name, disturbances)
    await job.play(100 * disturbances + 200)
    assert (await job.summary())[0] == "Completed"
    assert job.kueue.faults == []
    assert sum(job.disturber.done.values()) == disturbances
    assert violations(await environment.history(space)) == []
    attempt = (await job.status())["attempt"]
    return (
        f"{name}, seed {seed}: {dict(job.disturber.done)}, {job.kueue.evictions} evictions,"
        f" {attempt} attempts, {len(job.kueue.faults)} corrections by Kueue"
    )


@pytest.mark.parametrize(
    ("disturbances", "seeds"),
    [(10, [1]), pytest.param(100, [2], marks=[pytest.mark.sweep, pytest.mark.timeout(3600)])],
)
async def test_no_disturbance_makes_kueue_correct_the_operator(
    environment: OperatorEnvironment,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    disturbances: int,
    seeds: list[int],
) -> None:
    """100 lost pods, evictions and stopped queues for each kind of job, or a sample of them."""
    runs = [run(environment, namespace, n, s, disturbances) for n in SPECS for s in seeds]
    figures = await asyncio.gather(*runs)
    with capsys.disabled():
        print("\n" + "\n".join(figures))
