"""Jobs that compete for nodes under Kubernetes 1.35, with and without its own gang scheduling."""

from collections.abc import Iterator

import pytest

from ddp_operator.api.gang import GangType
from tests.api.control_plane import TESTED, ControlPlane
from tests.scheduling.pair import NODES, check_deadlock, check_gangs
from tests.scheduling.stage import Stage, scheduler_cluster

pytestmark = pytest.mark.api


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    with scheduler_cluster(NODES) as running:
        yield running


async def test_two_jobs_without_a_gang_block_each_other(stage: Stage) -> None:
    await check_deadlock(stage)


async def test_two_jobs_with_native_gangs_run_one_after_the_other(stage: Stage) -> None:
    waits_for = "0 of 3 pods of the Native group second-1 have a Kubernetes node"
    await check_gangs(stage.with_gang(GangType.NATIVE, TESTED.api), {"type": "Native"}, waits_for)
