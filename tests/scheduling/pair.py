"""Two jobs that each need more than half of a cluster, and whose pods arrive in turns."""

import asyncio
import time
from typing import Any

from tests.api.client import eventually, path_of
from tests.harness.fake_nodes import FakeNode
from tests.scheduling.job import ScheduledJob
from tests.scheduling.stage import GPUS, GPUS_PER_NODE, Stage

JSON = dict[str, Any]
NODES = [FakeNode(f"fake-{number}", capacity=GPUS) for number in range(4)]
"""A cluster with room for four pods."""
SIZE = 3
"""Pods of each job: more than half of the nodes."""
_QUOTA = "pods"


async def create_in_turns(stage: Stage, **spec: Any) -> tuple[ScheduledJob, ScheduledJob]:
    """Create two jobs so that each has two pods before either has its third one.

    A quota that grows in steps holds the third pods back. So the order does not depend on how fast
    operator and scheduler are.
    """
    first, second = stage.job("first"), stage.job("second")
    api, quotas = stage.environment.api, path_of("resourcequotas", stage.namespace)
    quota = {"metadata": {"name": _QUOTA}, "spec": {"hard": {"pods": "2"}}}
    await api.call("POST", quotas, quota)
    await first.apply(nodes=SIZE, gpusPerNode=GPUS_PER_NODE, **spec)
    await first.until(lambda _, pods: len(pods) == 2, "two of three pods exist")
    await api.call("PATCH", f"{quotas}/{_QUOTA}", {"spec": {"hard": {"pods": "4"}}})
    await second.apply(nodes=SIZE, gpusPerNode=GPUS_PER_NODE, **spec)
    await second.until(lambda _, pods: len(pods) == 2, "two of three pods exist")
    return first, second


async def create_the_rest(stage: Stage, *jobs: ScheduledJob) -> None:
    """Remove the quota, and let each job create its third pod."""
    quota = path_of("resourcequotas", stage.namespace, _QUOTA)
    await stage.environment.api.call("DELETE", quota)
    for job in jobs:
        await job.until(lambda _, pods: len(pods) == SIZE, "all pods exist")


async def check_deadlock(stage: Stage) -> None:
    """Check that without a gang each job gets two nodes and waits for the third one."""
    jobs = await create_in_turns(stage)
    for job in jobs:
        await job.until_placed(2)
    await create_the_rest(stage, *jobs)
    for job in jobs:
        await job.until_message("0/4 nodes are available", "Insufficient nvidia.com/gpu")
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        for job in jobs:
            await job.step()
            assert len(await job.nodes()) == 2
            assert (await job.condition())["reason"] == "Pending"
        await asyncio.sleep(0.2)


async def check_gangs(stage: Stage, gang: JSON, *waits_for: str) -> str:
    """Check that with a gang one job gets all its nodes, and then the other one.

    Args:
        stage: The operator and the namespace.
        gang: The `spec.gang` of both jobs.
        waits_for: Texts in MESSAGE of the job that waits.

    Returns:
        MESSAGE of the job that waited.
    """
    jobs = await create_in_turns(stage, gang=gang)
    await create_the_rest(stage, *jobs)
    running, waiting = jobs
    await running.until_reason("Running")
    assert len(await running.nodes()) == SIZE
    message = await waiting.until_message(*waits_for)
    assert await waiting.nodes() == []
    assert (await waiting.condition("GangScheduled"))["status"] == "False"
    await running.finish()
    await waiting.until_placed(SIZE)
    await waiting.until_reason("Running")
    await waiting.finish()

    async def released() -> bool:
        await asyncio.gather(*(job.step() for job in jobs))
        return not await stage.groups()

    await eventually(released, "the finished jobs have no group")
    return message
