"""Requests that the API server refuses, fails to serve, or serves and fails to answer."""

import asyncio
import itertools
import time

import pytest

from tests.api.client import eventually
from tests.api.faults import Fault
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.api.proxy import Proxy

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("operator")]


@pytest.mark.parametrize("seconds", [3.0, pytest.param(30.0, marks=pytest.mark.sweep)])
async def test_case_06_a_pod_that_is_refused_is_tried_again_and_the_others_stay(
    proxy: Proxy, job: Job, seconds: float
) -> None:
    begun = time.monotonic()
    with proxy.fault(
        verb="create", resource="pods", name="*-2", namespace=job.namespace, status=500
    ) as fault:
        await job.create(nodes=4)
        await job.wait_for_message("injected", seconds=10)
        before = await job.uids()
        assert len(before) == 3
        while time.monotonic() < begun + seconds:
            await job.wait_for_message("injected")
            assert await job.uids() == before
    tried = len(fault.befallen)
    await job.pods_of_attempt(1, nodes=4, seconds=60)
    after = await job.uids()
    assert {name: after[name] for name in before} == before
    assert (await job.status())["attempt"] == 1
    # Backoff from 0.2 s: it doubles, less up to a half.
    assert tried <= 8, "it tries in a tight loop"
    assert proxy.count(verb="delete", namespace=job.namespace) == 0


async def test_case_07_a_conflict_on_the_status_is_read_anew_and_no_transition_is_lost(
    proxy: Proxy, job: Job
) -> None:
    await job.train()
    with proxy.fault(
        verb="update", resource="ddpjobs/status", namespace=job.namespace, status=409, times=4
    ) as fault:
        await job.fail_rank(1)
        await job.pods_of_attempt(2)
    assert len(fault.befallen) == 4
    await job.join(attempt=2)
    await job.wait_for("Running")
    status = await job.status()
    assert (status["attempt"], status["lastFailure"]["rank"]) == (2, 1)
    assert status["restarts"] == 1


async def test_case_07_an_answer_that_is_lost_after_the_write_costs_nothing(
    proxy: Proxy, job: Job
) -> None:
    with (
        proxy.fault(
            resource="ddpjobs/status", namespace=job.namespace, times=1, lose_answer=True
        ) as status,
        proxy.fault(
            verb="create", resource="pods", namespace=job.namespace, times=1, lose_answer=True
        ) as pod,
    ):
        await job.train()
    assert len(status.befallen) == len(pod.befallen) == 1
    assert (await job.status())["attempt"] == 1
    assert len(await job.pods()) == 2
    assert proxy.count(verb="delete", namespace=job.namespace) == 0


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [(2, 5.0), pytest.param(30, 65.0, marks=pytest.mark.sweep), (None, 5.0)],
)
async def test_case_10_too_many_requests_are_answered_by_fewer_and_other_jobs_go_on(
    proxy: Proxy, job: Job, other_job: Job, retry_after: int | None, seconds: float
) -> None:
    begun = time.monotonic()
    with proxy.fault(namespace=job.namespace, status=429, retry_after=retry_after) as fault:
        await job.create()
        await eventually_befallen(fault)
        await other_job.train()
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
        asked = [r.at for r in fault.befallen if r.verb != "get"]
    ended = time.monotonic()
    await job.pods_of_attempt(1, seconds=60)
    if retry_after is None:
        # 0.2 s, doubled each time, less up to a half.
        assert len(asked) <= 8, "it asks in a tight loop"
    else:
        gaps = [b - a for a, b in itertools.pairwise(asked)]
        assert min(gaps, default=retry_after) >= 0.95 * retry_after, gaps
    assert time.monotonic() - ended <= max(retry_after or 0.0, 10.0)
    assert (await job.status())["attempt"] == 1


@pytest.mark.parametrize("seconds", [4.0, pytest.param(70.0, marks=pytest.mark.sweep)])
async def test_case_11_after_a_burst_of_server_errors_the_work_goes_on_by_itself(
    proxy: Proxy, operator: OperatorProcess, job: Job, other_job: Job, seconds: float
) -> None:
    process = operator.process
    await job.train()
    with (
        proxy.fault(status=503, resource="*pods*") as pods,
        proxy.fault(status=500, resource="ddpjobs*") as jobs,
    ):
        proxy.cut_watches()
        await job.fail_rank(0)
        await other_job.create()
        await asyncio.sleep(seconds)
        # Jobs of other tests may be there too, and are not what is counted.
        mine = {"", job.namespace, other_job.namespace}
        asked = [r for r in (*pods.befallen, *jobs.befallen) if r.namespace in mine]
        assert len(asked) <= 20 + 4 * seconds, "a tight loop"
    healthy = time.monotonic()
    await job.pods_of_attempt(2, seconds=60)
    await other_job.pods_of_attempt(1, seconds=60)
    assert time.monotonic() - healthy < 10.0
    assert process is operator.process
    assert operator.alive
    assert (await job.status())["attempt"] == 2


async def eventually_befallen(fault: Fault) -> None:
    """Wait until a fault has befallen a request."""

    async def befallen() -> bool:
        return bool(fault.befallen)

    await eventually(befallen, "a request that the fault befalls")
