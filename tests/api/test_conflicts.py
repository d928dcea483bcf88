"""Others write at the same time, or have taken the names already."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from ddp_operator.cluster.base import NameTakenError
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import Heart, work
from tests.api.bench import Bench
from tests.api.client import eventually, path_of
from tests.api.invariants import violations
from tests.api.stage import Stage
from tests.scenarios.flows import NAME

pytestmark = pytest.mark.api

CONFLICTS = 4


async def test_case_07_a_status_write_that_conflicts_is_tried_again_and_loses_nothing(
    bench: Bench, namespace: str
) -> None:
    """Each time the operator is about to write, somebody else writes first."""
    stage = Stage(bench, namespace)
    await stage.apply()
    operator, queue = stage.operator(), WorkQueue[tuple[str, str]]()
    write, tries = bench.cluster.write_status, 0

    async def too_late(job: Any, status: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= CONFLICTS:
            note = {"metadata": {"annotations": {"touched": str(tries)}}}
            await bench.api.call("PATCH", path_of("ddpjobs", namespace, NAME), note)
        return await write(job, status)

    async def has_pods() -> bool:
        return len(await stage.pods()) == 2

    with patch.object(bench.cluster, "write_status", too_late):
        operator.take_over()
        operator.cache.replace(await bench.cluster.snapshot(namespace))
        worker = asyncio.ensure_future(work(queue, operator.controller, Heart()))
        queue.add(operator.key)
        try:
            await eventually(has_pods, "both pods")
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
    await stage.until("Completed")
    assert (await stage.status())["attempt"] == 1
    history = await bench.history(namespace)
    refused = [r for r in history.requests if r.code == 409]
    assert [r.resource for r in refused] == ["ddpjobs/status"] * CONFLICTS
    assert violations(history) == []


@pytest.mark.parametrize("resource", ["services", "pods"])
async def test_case_08_a_name_that_is_taken_is_told_and_the_other_object_is_left_alone(
    bench: Bench, namespace: str, resource: str
) -> None:
    stage = Stage(bench, namespace)
    name = {"services": NAME, "pods": f"{NAME}-1"}[resource]
    theirs = await bench.api.call("POST", path_of(resource, namespace), foreign(resource, name))
    await stage.apply()
    operator = stage.operator()
    for _ in range(5):
        with pytest.raises(NameTakenError, match="exists already and is not this job's"):
            await operator.look()
    reason, message = await stage.summary()
    kind = {"services": "Service", "pods": "Pod"}[resource]
    assert (reason, message) == ("Pending", f"{kind} {name} exists already and is not this job's")
    path = path_of(resource, namespace, name)
    now = await bench.api.call("GET", path)
    assert now["metadata"] == theirs["metadata"]
    await bench.api.call("DELETE", path)
    await stage.until("Completed", operator)
    events = await bench.api.list("events", namespace)
    told = [e["message"] for e in events if e["reason"] == "Blocked"]
    assert told == [message]
    assert violations(await bench.history(namespace)) == []


def foreign(resource: str, name: str) -> dict[str, Any]:
    """An object of somebody else's."""
    if resource == "services":
        spec: dict[str, Any] = {"ports": [{"port": 80}]}
    else:
        drop = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec = {
            "containers": [{"name": "c", "image": "x", "securityContext": drop}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        }
    return {"metadata": {"name": name}, "spec": spec}
