"""Tests of requests that the API server rejects, fails to serve, or serves without an answer."""

import asyncio
import itertools
import time

import pytest

from tests.api.client import eventually
from tests.api.faults import Fault
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.proxy import FaultProxy

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


@pytest.mark.parametrize("seconds", [3.0, pytest.param(30.0, marks=pytest.mark.sweep)])
async def test_operator_retries_a_rejected_pod_and_keeps_the_others(
    proxy: FaultProxy, job: Job, seconds: float
) -> None:
    started = time.monotonic()
    with proxy.inject(
        verb="create", resource="pods", name="*-2", namespace=job.namespace, status=500
    ) as fault:
        await job.create(nodes=4)
        await job.wait_for_message("injected", seconds=10)
        before = await job.uids()
        assert len(before) == 3
        while time.monotonic() < started + seconds:
            await job.wait_for_message("injected")
            assert await job.uids() == before
    creations = len(fault.matched)
    await job.pods_of_attempt(1, nodes=4, seconds=60)
    after = await job.uids()
    assert {name: after[name] for name in before} == before
    assert (await job.status())["attempt"] == 1
    # The backoff starts at 0.2 s, doubles, and is shortened by up to a half.
    assert creations <= 8, "the operator retries without backoff"
    assert proxy.count(verb="delete", namespace=job.namespace) == 0


async def test_operator_rereads_the_job_on_a_status_conflict_and_loses_no_transition(
    proxy: FaultProxy, job: Job
) -> None:
    await job.train()
    with proxy.inject(
        verb="update", resource="ddpjobs/status", namespace=job.namespace, status=409, times=4
    ) as fault:
        await job.fail_rank(1)
        await job.pods_of_attempt(2)
    assert len(fault.matched) == 4
    await job.start_training(attempt=2)
    await job.wait_for("Running")
    status = await job.status()
    assert (status["attempt"], status["lastFailure"]["rank"]) == (2, 1)
    assert status["restarts"] == 1


async def test_lost_response_after_a_write_repeats_nothing(proxy: FaultProxy, job: Job) -> None:
    with (
        proxy.inject(
            resource="ddpjobs/status", namespace=job.namespace, times=1, lose_answer=True
        ) as status,
        proxy.inject(
            verb="create", resource="pods", namespace=job.namespace, times=1, lose_answer=True
        ) as pod,
    ):
        await job.train()
    assert len(status.matched) == len(pod.matched) == 1
    assert (await job.status())["attempt"] == 1
    assert len(await job.pods()) == 2
    assert proxy.count(verb="delete", namespace=job.namespace) == 0


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [(2, 5.0), pytest.param(30, 65.0, marks=pytest.mark.sweep), (None, 5.0)],
)
async def test_operator_backs_off_on_429_and_serves_other_jobs(
    proxy: FaultProxy, job: Job, other_job: Job, retry_after: int | None, seconds: float
) -> None:
    started = time.monotonic()
    with proxy.inject(namespace=job.namespace, status=429, retry_after=retry_after) as fault:
        await job.create()
        await wait_until_matched(fault)
        await other_job.train()
        await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))
        sent = [r.at for r in fault.matched if r.verb != "get"]
    ended = time.monotonic()
    await job.pods_of_attempt(1, seconds=60)
    if retry_after is None:
        # The backoff starts at 0.2 s, doubles, and is shortened by up to a half.
        assert len(sent) <= 8, "the operator retries without backoff"
    else:
        gaps = [b - a for a, b in itertools.pairwise(sent)]
        assert min(gaps, default=retry_after) >= 0.95 * retry_after, gaps
    assert time.monotonic() - ended <= max(retry_after or 0.0, 10.0)
    assert (await job.status())["attempt"] == 1


@pytest.mark.parametrize("seconds", [4.0, pytest.param(70.0, marks=pytest.mark.sweep)])
async def test_operator_recovers_after_a_burst_of_server_errors(
    proxy: FaultProxy, operator: OperatorProcess, job: Job, other_job: Job, seconds: float
) -> None:
    process = operator.process
    await job.train()
    with (
        proxy.inject(status=503, resource="*pods*") as pods,
        proxy.inject(status=500, resource="ddpjobs*") as jobs,
    ):
        proxy.cut_watches()
        await job.fail_rank(0)
        await other_job.create()
        await asyncio.sleep(seconds)
        # Jobs of other tests may cause requests too. Do not count those.
        mine = {"", job.namespace, other_job.namespace}
        sent = [r for r in (*pods.matched, *jobs.matched) if r.namespace in mine]
        assert len(sent) <= 20 + 4 * seconds, "the operator retries without backoff"
    healthy = time.monotonic()
    await job.pods_of_attempt(2, seconds=60)
    await other_job.pods_of_attempt(1, seconds=60)
    assert time.monotonic() - healthy < 10.0
    assert process is operator.process
    assert operator.alive
    assert (await job.status())["attempt"] == 2


async def wait_until_matched(fault: Fault) -> None:
    """Wait until a fault was applied to a request."""

    async def matched() -> bool:
        return bool(fault.matched)

    await eventually(matched, "the fault is applied to a request")
