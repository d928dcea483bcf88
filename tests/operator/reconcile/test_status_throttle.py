"""Status writes are throttled while the pods of an attempt start one by one."""

from datetime import timedelta

import pytest

from ddp_operator.api.status import ConditionType
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import NOW, agent_status, failed_status, summary

PODS = 32


class StartingJob(Bench):
    """A job with running pods, whose ranks join one pod after the other."""

    async def start(self) -> "StartingJob":
        await self.reconcile_until_idle()
        for index in range(PODS):
            self.set_agent_status(
                f"digits-{index}", agent_status(index, phase="Starting"), ready=False
            )
        await self.reconcile_until_idle()
        self.writes_before = len(self.cluster.writes)
        return self

    async def join(self, index: int, seconds: float) -> float | None:
        self.now = NOW + timedelta(seconds=seconds)
        self.set_agent_status(f"digits-{index}", agent_status(index))
        return await self.reconcile()

    @property
    def writes(self) -> int:
        return self.cluster.writes[self.writes_before :].count("status digits")


@pytest.mark.parametrize(("seconds", "writes"), [(9, 1), (19, 2), (39, 3), (79, 4), (600, 7)])
async def test_start_of_any_length_needs_few_status_writes(seconds: float, writes: int) -> None:
    start = await StartingJob(nodes=PODS).start()
    for index in range(PODS):
        await start.join(index, seconds * (index + 1) / PODS)
    assert start.writes <= writes
    assert start.status().ready == f"{PODS}/{PODS}"
    assert start.status().is_true(ConditionType.RENDEZVOUSED)


async def test_delayed_pod_counts_are_written_after_the_interval() -> None:
    start = await StartingJob(nodes=PODS).start()
    requeue = await start.join(0, 1)
    assert (start.writes, start.status().ready) == (0, f"0/{PODS}")
    assert requeue is not None
    assert requeue <= 9
    await start.join(1, 11)
    assert (start.writes, start.status().ready) == (1, f"2/{PODS}")


async def test_stuck_pod_is_written_immediately() -> None:
    start = await StartingJob(nodes=PODS).start()
    start.now = NOW + timedelta(seconds=1)
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    start.cluster.change_pod(
        "digits-3", phase="Pending", containerStatuses=[{"name": "worker", "state": state}]
    )
    await start.reconcile()
    assert start.writes == 1
    assert "ImagePullBackOff" in summary(start.status())[2]


async def test_clock_set_back_does_not_delay_writes() -> None:
    start = await StartingJob(nodes=PODS).start()
    await start.join(0, -3600)
    assert start.status().ready == f"1/{PODS}"


async def test_pod_counts_are_delayed_by_at_most_five_minutes() -> None:
    start = await StartingJob(nodes=PODS).start()
    await start.join(0, 36_000)
    assert await start.join(1, 36_001) is not None
    assert (start.writes, start.status().ready) == (1, f"1/{PODS}")
    await start.join(2, 36_000 + 301)
    assert (start.writes, start.status().ready) == (2, f"3/{PODS}")


async def test_next_action_of_a_finished_job_is_written_immediately() -> None:
    start = await StartingJob(nodes=PODS, maxRestarts=0).start()
    start.now = NOW + timedelta(seconds=1)
    start.set_agent_status("digits-0", failed_status(0), ready=False)
    await start.reconcile_until_idle()
    assert (start.status().next_action or "").startswith("the operator waits for digits-0")
    for index in range(PODS):
        start.cluster.change_pod(f"digits-{index}", phase="Failed")
    await start.reconcile_until_idle()
    assert start.status().next_action == "none: the job is finished"
