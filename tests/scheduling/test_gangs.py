"""Jobs that compete for nodes under Kubernetes 1.35, with and without its own gang scheduling."""

from collections.abc import Iterator
from typing import Any

import pytest

from ddp_operator.api.gang import GangType
from tests.api.client import path_of
from tests.api.control_plane import TESTED, ControlPlane
from tests.scheduling.job import ScheduledJob
from tests.scheduling.pair import NODES, SIZE, check_deadlock, check_gangs
from tests.scheduling.stage import GPUS_PER_NODE, Stage, scheduler_cluster

pytestmark = pytest.mark.api

GANG = {"type": "Native"}
HELD_SECONDS = 300
"""Seconds for which Kubernetes 1.35 reserves nodes for a gang that waits for others."""


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    with scheduler_cluster(NODES) as running:
        yield running


async def test_two_jobs_without_a_gang_block_each_other(stage: Stage) -> None:
    await check_deadlock(stage)


async def test_two_jobs_with_native_gangs_run_one_after_the_other(stage: Stage) -> None:
    waits_for = "0 of 3 pods of the Native group second-1 have a Kubernetes node"
    await check_gangs(stage.with_gang(GangType.NATIVE, TESTED.api), GANG, waits_for)


async def lose_pod_beside_a_waiting_gang(stage: Stage, **spec: Any) -> ScheduledJob:
    """Return a job that has just lost a pod. The only free nodes are reserved for another gang."""
    stage = stage.with_gang(GangType.NATIVE, TESTED.api)
    running, waiting = stage.job("running"), stage.job("waiting")
    await running.apply(nodes=SIZE, gpusPerNode=GPUS_PER_NODE, gang=GANG, **spec)
    await running.until_reason("Running")
    await waiting.apply(nodes=SIZE, gpusPerNode=GPUS_PER_NODE, gang=GANG)
    await waiting.until_message("Insufficient nvidia.com/gpu")
    name = (await running.pods())[0]["metadata"]["name"]
    await running.api.call("DELETE", path_of("pods", stage.namespace, name))
    return running


async def test_replaced_pod_of_a_more_urgent_gang_gets_a_node_at_once(stage: Stage) -> None:
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    await stage.environment.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    running = await lose_pod_beside_a_waiting_gang(stage, priorityClassName="urgent")
    await running.until(lambda status, _: status["attempt"] == 2, "the next attempt")
    await running.until_reason("Running")


@pytest.mark.sweep
@pytest.mark.timeout(900)
async def test_replaced_pod_of_an_equal_gang_waits_until_the_other_one_gives_its_nodes_up(
    stage: Stage,
) -> None:
    running = await lose_pod_beside_a_waiting_gang(stage)
    await running.until_message("2 of 3 pods", "Insufficient nvidia.com/gpu")
    await running.until_reason("Running", 2 * HELD_SECONDS)
