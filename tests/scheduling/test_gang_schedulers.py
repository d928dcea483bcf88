"""Volcano and scheduler-plugins as their releases install them, on fake nodes."""

import os
from collections.abc import Iterator

import pytest

from ddp_operator.api.gang import GangType
from ddp_operator.builders.gangs.versions import COSCHEDULING, VOLCANO
from tests.api.control_plane import TESTED, ControlPlane
from tests.harness import gang_schedulers
from tests.scheduling.events import GangUnderEvents
from tests.scheduling.pair import NODES, check_gangs
from tests.scheduling.stage import Stage, scheduler_cluster

pytestmark = [pytest.mark.api, pytest.mark.sweep, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("DDP_SEED") or "0")
GANGS = {
    GangType.NATIVE: TESTED.api,
    GangType.VOLCANO: VOLCANO,
    GangType.COSCHEDULING: COSCHEDULING,
}
VALUES = (
    "gangs.types={Native,Volcano,Coscheduling}",
    f"gangs.coschedulingScheduler={gang_schedulers.COSCHEDULING}",
)
WAITS_FOR = {
    GangType.VOLCANO: "0 of 3 pods of the Volcano group second-1 have a Kubernetes node",
    GangType.COSCHEDULING: "0 of 3 pods of the Coscheduling group second-1 have a Kubernetes node",
}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    with scheduler_cluster(NODES, gangs=VALUES) as running:
        yield running


@pytest.fixture
def gang_stage(gang: GangType, stage: Stage, control_plane: ControlPlane) -> Stage:
    """Return the test's stage with an operator that offers a gang scheduler, which runs."""
    if gang is GangType.VOLCANO:
        gang_schedulers.start_volcano(control_plane.cluster)
    elif gang is GangType.COSCHEDULING:
        gang_schedulers.start_coscheduling(control_plane.cluster)
    return stage.with_gang(gang, GANGS[gang], gang_schedulers.COSCHEDULING)


@pytest.mark.parametrize("gang", WAITS_FOR)
async def test_two_jobs_run_one_after_the_other(gang_stage: Stage, gang: GangType) -> None:
    await check_gangs(gang_stage, {"type": gang}, WAITS_FOR[gang])


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("gang", GANGS)
async def test_gang_outlives_random_events(gang_stage: Stage, gang: GangType, count: int) -> None:
    # Kubernetes 1.35 reserves nodes for a gang that waits.
    competes = gang is not GangType.NATIVE
    gangs = await GangUnderEvents.start(gang_stage, {"type": gang}, competes=competes)
    await gangs.play(SEED, count)
    await gangs.finish()
