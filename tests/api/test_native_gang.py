"""Native gang scheduling of Kubernetes 1.35: the API server keeps the group object and pod field.

No scheduler runs here, so the pods wait until a fake kubelet takes them. The API server, the
operator's rights and its admission policy are real.
"""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.versions import NATIVE_1_35, Gangs, api_group
from ddp_operator.runtime.gang_apis import GangApis
from tests.api.client import path_of
from tests.api.in_process_operator import DEFAULTS, OperatorEnvironment
from tests.api.simulated_job import SimulatedJob
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

JSON = dict[str, Any]
NATIVE = {"type": "Native"}


async def job_with_gang(
    environment: OperatorEnvironment, namespace: str, **spec: Any
) -> SimulatedJob:
    """Return a job under an operator that has discovered what the API server serves."""
    SimulatedJob(environment, namespace).new_operator().activate()
    asked = GangApis(environment.cluster.served_versions, Gangs(types=(GangType.NATIVE,)))
    gangs = await asked.discover()
    assert dict(gangs.served) == {GangType.NATIVE: NATIVE_1_35}
    simulated = SimulatedJob(environment, namespace, defaults=replace(DEFAULTS, gangs=gangs))
    await simulated.apply(gang=NATIVE, **spec)
    return simulated


async def groups(environment: OperatorEnvironment, namespace: str) -> dict[str, JSON]:
    found = await environment.api.list("workloads", namespace)
    return {one["metadata"]["name"]: one["spec"]["podGroups"][0] for one in found}


async def test_pods_of_a_job_belong_to_its_group_object(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await job_with_gang(environment, namespace)
    await simulated.new_operator().reconcile_until_idle()
    gang = {"name": "workers", "policy": {"gang": {"minCount": 2}}}
    assert await groups(environment, namespace) == {f"{NAME}-1": gang}
    pods = await simulated.pods()
    assert len(pods) == 2
    for pod in pods:
        assert pod["spec"]["workloadRef"] == {"name": f"{NAME}-1", "podGroup": "workers"}
    status = await simulated.status()
    found = {one["type"]: one for one in status["conditions"]}["GangScheduled"]
    assert (found["status"], found["reason"]) == ("False", "WaitingForGang")


async def test_new_size_of_a_job_gets_a_new_group_object(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await job_with_gang(environment, namespace)
    await simulated.run_until("Running")
    await simulated.edit(nodes=3)
    await simulated.run_until("Running")
    await simulated.new_operator().reconcile_until_idle()
    found = await groups(environment, namespace)
    [name] = found
    assert name != f"{NAME}-1"
    assert found[name]["policy"] == {"gang": {"minCount": 3}}
    members = {pod["spec"]["workloadRef"]["name"] for pod in await simulated.pods()}
    assert members == {name}


async def test_pods_outside_the_gang_come_later_and_belong_to_no_group(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await job_with_gang(
        environment, namespace, nodes=3, elastic={"minNodes": 2}, spares=1
    )
    await simulated.new_operator().reconcile_until_idle()
    found = await groups(environment, namespace)
    assert found[f"{NAME}-1"]["policy"] == {"gang": {"minCount": 2}}
    pods = await simulated.pods()
    assert [pod["metadata"]["name"] for pod in pods] == [f"{NAME}-0", f"{NAME}-1"]
    for pod in pods:
        await simulated.kubelet.bind(pod)
    await simulated.new_operator().reconcile_until_idle()
    marks = {p["metadata"]["name"]: "workloadRef" in p["spec"] for p in await simulated.pods()}
    assert marks == {f"{NAME}-{index}": index < 2 for index in range(4)}
    await simulated.run_until("Running")
    status = await simulated.status()
    found_condition = {one["type"]: one for one in status["conditions"]}["GangScheduled"]
    assert found_condition["message"].startswith("2 of 2 pods of the Native group")


async def test_suspended_job_has_no_group_object(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await job_with_gang(environment, namespace)
    await simulated.run_until("Running")
    await simulated.edit(suspend=True)
    operator = await simulated.run_until("Suspended")
    for _ in range(10):
        if not await simulated.pods():
            break
        await simulated.advance()
        await operator.reconcile_until_idle()
    await operator.reconcile_until_idle()
    assert await groups(environment, namespace) == {}


async def test_group_object_that_an_administrator_deleted_is_restored(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await job_with_gang(environment, namespace)
    await simulated.run_until("Running")
    await environment.api.call("DELETE", path_of("workloads", namespace, f"{NAME}-1"))
    await simulated.new_operator().reconcile_until_idle()
    assert list(await groups(environment, namespace)) == [f"{NAME}-1"]


async def test_api_server_serves_no_version_of_a_missing_gang_scheduler(
    environment: OperatorEnvironment, namespace: str
) -> None:
    SimulatedJob(environment, namespace).new_operator().activate()
    assert await environment.cluster.served_versions(api_group(GangType.VOLCANO)) == ()
