"""Jobs whose pods a quota or a scheduling gate holds for longer than any deadline."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.cluster.base import ClusterError
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import after, summary

DEADLINES: dict[str, Any] = {"startupDeadlineSeconds": 600, "activeDeadlineSeconds": 1000}
REFUSED = 'pods "digits-1" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8'
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


async def wait_for_quota(bench: Bench, minutes: int) -> None:
    """Reconcile once a minute, as often as the retries of a refused job do."""
    for _ in range(minutes):
        with contextlib.suppress(ClusterError):
            await bench.reconcile()
        bench.now += timedelta(minutes=1)


@pytest.mark.slow
async def test_job_waits_in_a_quota_for_a_day_also_through_restarts_of_the_operator() -> None:
    bench = Bench(**DEADLINES)
    bench.cluster.refusals["create Pod digits-1"] = ClusterError(REFUSED, status=403)
    for _ in range(4):
        await wait_for_quota(bench, 360)
        bench.start_controller()
    assert summary(bench.status()) == ("Unknown", "Pending", REFUSED)
    bench.cluster.refusals.clear()
    await bench.train()
    assert summary(bench.status())[1] == "Running"
    held = bench.status().queue
    assert held is not None
    assert held.since is None
    day = 86_400
    # Nobody knows of a refusal before the second look at the job of each of the four processes.
    assert day - 4 * 60 <= held.job_seconds == held.attempt_seconds <= day
    bench.now += timedelta(seconds=700)
    await bench.reconcile()
    assert summary(bench.status())[1] == "Running"
    bench.now += timedelta(seconds=300)
    await bench.reconcile()
    assert summary(bench.status())[1] == "Failed"


async def test_pods_wait_behind_gates_for_a_day() -> None:
    bench = Bench(**DEADLINES)
    await bench.reconcile()
    for name in ("digits-0", "digits-1"):
        bench.cluster.change_pod(name, phase="Pending", conditions=[GATED])
    bench.now = after(2)
    await bench.reconcile_until_idle()
    writes = len(bench.cluster.writes)
    for hour in range(24):
        bench.now = after(3600 * hour + 10)
        await bench.reconcile()
    assert len(bench.cluster.writes) == writes
    for name in ("digits-0", "digits-1"):
        bench.cluster.change_pod(name, phase="Pending", conditions=[SCHEDULED])
    bench.now = after(86_402)
    await bench.reconcile_until_idle()
    held = bench.status().queue
    assert held is not None
    assert (held.since, held.attempt_seconds, held.job_seconds) == (None, 86_400, 86_400)
    bench.now = after(86_400 + 599)
    await bench.reconcile()
    assert summary(bench.status())[1] == "Pending"
    bench.now = after(86_400 + 600)
    await bench.reconcile()
    assert summary(bench.status())[1] == "Failed"
