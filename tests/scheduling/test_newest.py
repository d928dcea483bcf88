"""Gang scheduling of the newest Kubernetes release, whose group object is a PodGroup."""

import os
from collections.abc import Iterator

import pytest

from ddp_operator.api.gang import GangType
from tests.api.control_plane import NEWEST, ControlPlane
from tests.scheduling.events import GangUnderEvents
from tests.scheduling.pair import NODES, check_deadlock, check_gangs
from tests.scheduling.stage import Stage, scheduler_cluster

pytestmark = [pytest.mark.api, pytest.mark.sweep, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("DDP_SEED") or "0")
GANG = {"type": "Native"}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    with scheduler_cluster(NODES, NEWEST) as running:
        yield running


async def test_two_jobs_without_a_gang_block_each_other(stage: Stage) -> None:
    await check_deadlock(stage)


async def test_two_jobs_with_native_gangs_run_one_after_the_other(stage: Stage) -> None:
    waits_for = "0 of 3 pods of the Native group second-1 have a Kubernetes node"
    await check_gangs(stage.with_gang(GangType.NATIVE, NEWEST.api), GANG, waits_for)


@pytest.mark.parametrize("count", [5, 100])
async def test_gang_outlives_random_events(stage: Stage, count: int) -> None:
    gangs = await GangUnderEvents.start(stage.with_gang(GangType.NATIVE, NEWEST.api), GANG)
    await gangs.play(SEED, count)
    await gangs.finish()
