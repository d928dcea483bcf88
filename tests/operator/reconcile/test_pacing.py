"""Pods that arrive one by one cost no status write each."""

from datetime import timedelta

import pytest

from ddp_operator.api.status import ConditionType
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import NOW, failed_word, summary, word

PODS = 32


class Start(Bench):
    """A job whose pods run, and whose ranks join one pod after the other."""

    async def begin(self) -> "Start":
        await self.settle()
        for index in range(PODS):
            self.say(f"digits-{index:02}", word(index, phase="Starting"), ready=False)
        await self.settle()
        self.begun = len(self.cluster.writes)
        return self

    async def join(self, index: int, seconds: float) -> float | None:
        self.now = NOW + timedelta(seconds=seconds)
        self.say(f"digits-{index:02}", word(index))
        return await self.look()

    @property
    def writes(self) -> int:
        return self.cluster.writes[self.begun :].count("status digits")


@pytest.mark.parametrize(("seconds", "writes"), [(9, 1), (19, 2), (39, 3), (79, 4), (600, 7)])
async def test_a_start_of_any_length_costs_few_writes(seconds: float, writes: int) -> None:
    start = await Start(nodes=PODS).begin()
    for index in range(PODS):
        await start.join(index, seconds * (index + 1) / PODS)
    assert start.writes <= writes
    assert start.status().ready == f"{PODS}/{PODS}"
    assert start.status().is_true(ConditionType.RENDEZVOUSED)


async def test_news_that_wait_are_written_when_their_time_has_come() -> None:
    start = await Start(nodes=PODS).begin()
    again = await start.join(0, 1)
    assert (start.writes, start.status().ready) == (0, f"0/{PODS}")
    assert again is not None
    assert again <= 9
    await start.join(1, 11)
    assert (start.writes, start.status().ready) == (1, f"2/{PODS}")


async def test_a_pod_that_cannot_start_is_told_at_once() -> None:
    start = await Start(nodes=PODS).begin()
    start.now = NOW + timedelta(seconds=1)
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    start.cluster.change_pod(
        "digits-03", phase="Pending", containerStatuses=[{"name": "worker", "state": state}]
    )
    await start.look()
    assert start.writes == 1
    assert "ImagePullBackOff" in summary(start.status())[2]


async def test_a_clock_that_was_set_back_holds_nothing_up() -> None:
    start = await Start(nodes=PODS).begin()
    await start.join(0, -3600)
    assert start.status().ready == f"1/{PODS}"


async def test_news_wait_no_longer_than_five_minutes_however_old_the_attempt_is() -> None:
    start = await Start(nodes=PODS).begin()
    await start.join(0, 36_000)
    assert await start.join(1, 36_001) is not None
    assert (start.writes, start.status().ready) == (1, f"1/{PODS}")
    await start.join(2, 36_000 + 301)
    assert (start.writes, start.status().ready) == (2, f"3/{PODS}")


async def test_what_a_finished_job_waits_for_is_no_news_that_waits() -> None:
    start = await Start(nodes=PODS, maxRestarts=0).begin()
    start.now = NOW + timedelta(seconds=1)
    start.say("digits-00", failed_word(0), ready=False)
    await start.settle()
    assert (start.status().next_action or "").startswith("waits for digits-00")
    for index in range(PODS):
        start.cluster.change_pod(f"digits-{index:02}", phase="Failed")
    await start.settle()
    assert start.status().next_action == "nothing: finished"
