"""Tests of users and controllers that edit a job's children."""

from typing import Any

import pytest

from ddp_operator.cluster.base import NameTakenError
from ddp_wire import contract
from tests.api.client import path_of
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.simulated_job import SimulatedJob
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

JSON = dict[str, Any]


async def running(environment: OperatorEnvironment, namespace: str) -> SimulatedJob:
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply()
    await simulated.run_until("Running")
    return simulated


async def edit(environment: OperatorEnvironment, path: str, change: JSON) -> None:
    await environment.api.call("PATCH", path, change)


async def test_label_taken_from_a_pod_is_restored(
    environment: OperatorEnvironment, namespace: str
) -> None:
    simulated = await running(environment, namespace)
    path = path_of("pods", namespace, f"{NAME}-1")
    await edit(environment, path, {"metadata": {"labels": {contract.LABEL_JOB_UID: None}}})
    operator = simulated.new_operator()
    await operator.reconcile_until_idle()
    found = await environment.api.call("GET", path)
    assert found["metadata"]["labels"][contract.LABEL_JOB_UID]
    await simulated.run_until("Completed")
    assert (await simulated.status())["infrastructureRestarts"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"selector": {"app": "other", contract.LABEL_JOB_UID: None}}},
        {"metadata": {"labels": {contract.LABEL_JOB_UID: "other"}}},
    ],
    ids=["selector", "label"],
)
async def test_edited_service_is_restored(
    environment: OperatorEnvironment, namespace: str, change: JSON
) -> None:
    """Without the selector of the Service no pod finds node 0, so no recovery would end."""
    simulated = await running(environment, namespace)
    path = path_of("services", namespace, NAME)
    before = await environment.api.call("GET", path)
    await edit(environment, path, change)
    await simulated.new_operator().reconcile_until_idle()
    found = await environment.api.call("GET", path)
    assert found["spec"]["selector"] == before["spec"]["selector"]
    assert found["metadata"]["labels"] == before["metadata"]["labels"]
    assert (await simulated.summary())[0] == "Running"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"ingress": [{}]}},
        {"spec": {"podSelector": {"matchLabels": {"app": "other"}}}},
        {"metadata": {"labels": {contract.LABEL_JOB_UID: None}}},
    ],
    ids=["rules", "selector", "label"],
)
async def test_edited_network_policy_is_restored(
    environment: OperatorEnvironment, namespace: str, change: JSON
) -> None:
    """Without the policy's rules every pod of the cluster could send code to the job's store."""
    simulated = await running(environment, namespace)
    path = path_of("networkpolicies", namespace, NAME)
    before = await environment.api.call("GET", path)
    await edit(environment, path, change)
    operator = simulated.new_operator()
    await operator.reconcile_until_idle()
    found = await environment.api.call("GET", path)
    assert found["spec"] == before["spec"]
    assert found["metadata"]["labels"] == before["metadata"]["labels"]
    written = operator.writes
    await operator.reconcile_until_idle()
    assert operator.writes == written, "the API server stores the policy in another form"


async def test_pod_without_its_owner_is_reported(
    environment: OperatorEnvironment, namespace: str
) -> None:
    """A pod without an owner outlives the job, so the operator neither counts nor deletes it."""
    simulated = await running(environment, namespace)
    path = path_of("pods", namespace, f"{NAME}-1")
    await edit(environment, path, {"metadata": {"ownerReferences": None}})
    operator = simulated.new_operator()
    for _ in range(3):
        with pytest.raises(NameTakenError):
            await operator.reconcile_once()
    expected = f"Pod {NAME}-1 exists already and is not this job's"
    assert await simulated.summary() == ("Pending", expected)
