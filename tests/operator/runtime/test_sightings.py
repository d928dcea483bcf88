"""Tests of waits that count from this process's first observation, whatever other clocks show."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.reconcile.abandoned import OVERDUE_GRACE, UNREACHABLE_GRACE
from ddp_operator.runtime.controller import Controller
from tests.operator.runtime.test_controller import Bench

GRACE = 60
OVERDUE = GRACE + OVERDUE_GRACE.total_seconds()
HOUR = timedelta(hours=1)
STEPS = (-HOUR, timedelta(0), HOUR)


class ClockBench(Bench):
    """Bench whose operator has a monotonic clock and a wall clock."""

    def __init__(self, **spec: Any) -> None:
        self.monotonic = 1000.0
        super().__init__(**spec)

    def start_controller(self) -> None:
        """Start a new controller process."""
        self.controller = Controller(
            self.cluster,
            self.cache,
            self.defaults,
            lambda: self.now,
            monotonic=lambda: self.monotonic,
            agents=self.agents,
        )

    def pass_seconds(self, seconds: float) -> None:
        """Let both clocks advance."""
        self.monotonic += seconds
        self.now += timedelta(seconds=seconds)

    def mark_deleted(self, name: str, offset: timedelta, reason: str) -> None:
        """Delete a pod with a grace period, by an API server whose clock is off by `offset`."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        self.cluster.change_pod(name, conditions=[condition])
        deadline = self.now + offset + timedelta(seconds=GRACE)
        self.cluster.mark_deleted(name, deadline, GRACE)

    async def replaces(self, name: str) -> bool:
        """Reconcile. Return whether the operator has replaced the pod by force."""
        before = self.cluster.pod(name)["metadata"]["uid"]
        await self.reconcile_until_idle()
        return bool(self.cluster.pod(name)["metadata"]["uid"] != before)


@pytest.mark.parametrize("offset", STEPS, ids=["behind", "exact", "ahead"])
@pytest.mark.parametrize("step", STEPS, ids=["set back", "not set", "set forward"])
@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("EvictionByEvictionAPI", OVERDUE),
        ("DeletionByTaintManager", UNREACHABLE_GRACE.total_seconds()),
    ],
)
async def test_deleted_pod_is_replaced_a_fixed_time_after_its_first_sight(
    offset: timedelta, step: timedelta, reason: str, wait: float
) -> None:
    """The clock of the API server differs, and the operator's wall clock is set meanwhile."""
    bench = ClockBench()
    await bench.train()
    uid = bench.cluster.pod("digits-1")["metadata"]["uid"]
    bench.mark_deleted("digits-1", offset, reason)
    if reason == "DeletionByTaintManager":
        del bench.cluster.agents[uid]
    bench.pass_seconds(500)
    assert not await bench.replaces("digits-1"), "the operator sees the deletion only now"
    bench.now += step
    bench.pass_seconds(wait - 0.1)
    assert not await bench.replaces("digits-1")
    bench.pass_seconds(0.2)
    assert await bench.replaces("digits-1")
    assert bench.status().attempt == 2


async def test_new_operator_process_and_new_pod_restart_the_wait() -> None:
    bench = ClockBench()
    await bench.train()
    bench.mark_deleted("digits-1", timedelta(0), "EvictionByEvictionAPI")
    assert not await bench.replaces("digits-1")
    bench.pass_seconds(OVERDUE - 1)
    bench.start_controller()
    assert not await bench.replaces("digits-1")
    bench.pass_seconds(OVERDUE - 1)
    assert not await bench.replaces("digits-1")
    bench.pass_seconds(2)
    assert await bench.replaces("digits-1")
    bench.mark_deleted("digits-1", timedelta(0), "EvictionByEvictionAPI")
    assert not await bench.replaces("digits-1")
    bench.pass_seconds(OVERDUE - 1)
    assert not await bench.replaces("digits-1")
