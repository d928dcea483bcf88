"""Tests of writers that interfere with the operator: conflicting writes and taken names."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from ddp_operator.cluster.base import NameTakenError
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity, work
from tests.api.client import eventually, path_of
from tests.api.in_process_operator import OperatorEnvironment
from tests.api.invariants import violations
from tests.api.simulated_job import SimulatedJob
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

CONFLICTS = 4


async def test_operator_retries_conflicting_status_writes_and_loses_nothing(
    environment: OperatorEnvironment, namespace: str
) -> None:
    """Let another client change the job before each of the operator's first status writes."""
    simulated = SimulatedJob(environment, namespace)
    await simulated.apply()
    operator, queue = simulated.new_operator(), WorkQueue[tuple[str, str]]()
    write, attempts = environment.cluster.write_status, 0

    async def write_after_another_client(job: Any, status: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= CONFLICTS:
            note = {"metadata": {"annotations": {"touched": str(attempts)}}}
            await environment.api.call("PATCH", path_of("ddpjobs", namespace, NAME), note)
        return await write(job, status)

    async def has_pods() -> bool:
        return len(await simulated.pods()) == 2

    with patch.object(environment.cluster, "write_status", write_after_another_client):
        operator.activate()
        operator.cache.replace(await environment.cluster.snapshot(namespace))
        worker = asyncio.ensure_future(work(queue, operator.controller, WorkerActivity()))
        queue.add(operator.key)
        try:
            await eventually(has_pods, "both pods")
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
    await simulated.run_until("Completed")
    assert (await simulated.status())["attempt"] == 1
    history = await environment.history(namespace)
    refused = [r for r in history.requests if r.code == 409]
    assert [r.resource for r in refused] == ["ddpjobs/status"] * CONFLICTS
    assert violations(history) == []


@pytest.mark.parametrize("resource", ["services", "networkpolicies", "pods"])
async def test_operator_reports_a_taken_name_and_leaves_the_other_object_alone(
    environment: OperatorEnvironment, namespace: str, resource: str
) -> None:
    simulated = SimulatedJob(environment, namespace)
    name = f"{NAME}-1" if resource == "pods" else NAME
    theirs = await environment.api.call(
        "POST", path_of(resource, namespace), foreign(resource, name)
    )
    await simulated.apply()
    operator = simulated.new_operator()
    for _ in range(5):
        with pytest.raises(NameTakenError, match="exists already and is not this job's"):
            await operator.reconcile_once()
    reason, message = await simulated.summary()
    kind = _KINDS[resource]
    assert (reason, message) == ("Pending", f"{kind} {name} exists already and is not this job's")
    path = path_of(resource, namespace, name)
    now = await environment.api.call("GET", path)
    assert now["metadata"] == theirs["metadata"]
    await environment.api.call("DELETE", path)
    await simulated.run_until("Completed", operator)
    events = await environment.api.list("events", namespace)
    reported = [e["message"] for e in events if e["reason"] == "Blocked"]
    assert reported == [message]
    assert violations(await environment.history(namespace)) == []


_KINDS = {"services": "Service", "networkpolicies": "NetworkPolicy", "pods": "Pod"}


def foreign(resource: str, name: str) -> dict[str, Any]:
    """Return an object that belongs to another owner."""
    if resource == "services":
        spec: dict[str, Any] = {"ports": [{"port": 80}]}
    elif resource == "networkpolicies":
        spec = {"podSelector": {}}
    else:
        drop = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec = {
            "containers": [{"name": "c", "image": "x", "securityContext": drop}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        }
    return {"metadata": {"name": name}, "spec": spec}
