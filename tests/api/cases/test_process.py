"""What happens to the operator's process, to its clock, and to its way to the API server."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.api.cases.conftest import Front
from tests.api.client import JSON, eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.tools.install import RELEASE, SYSTEM_NAMESPACE

pytestmark = pytest.mark.api

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 3, 2.0, 0.4
LEASE_NAME = f"{RELEASE}-operator"
ELECTION = {
    "lease_namespace": SYSTEM_NAMESPACE,
    "lease_name": LEASE_NAME,
    "lease_seconds": LEASE_SECONDS,
    "renew_seconds": RENEW_SECONDS,
    "retry_seconds": RETRY_SECONDS,
}
FULL_ELECTION = {k: ELECTION[k] for k in ("lease_namespace", "lease_name")}
"""With the times of the chart."""


@pytest.fixture
def replicas(front: Front, second_front: Front) -> Iterator[list[OperatorProcess]]:
    """Two candidates for the Lease, not started yet; each has a proxy of its own."""
    first = front.operator("first", settings={**ELECTION, "identity": "first"})
    second = second_front.operator("second", settings={**ELECTION, "identity": "second"})
    try:
        yield [first, second]
    finally:
        first.kill()
        second.kill()


@pytest.fixture
async def leader_first(replicas: list[OperatorProcess]) -> list[OperatorProcess]:
    """Both run: the first leads, the second stands by."""
    first, second = replicas
    first.start()
    await eventually(lambda: first.says(200, "ok"), "the first leads")
    second.start()
    await eventually(lambda: second.says(200, "standing by: first"), "the second stands by")
    return replicas


async def test_case_49_when_the_leader_is_killed_the_next_takes_over_within_the_lease(
    leader_first: list[OperatorProcess], job: Job
) -> None:
    first, second = leader_first
    await job.train()
    first.kill()
    last = await _lease(job)
    await job.fail_rank(1)
    await job.pods_of_attempt(2)
    assert (await job.status())["restarts"] == 1
    assert await second.says(200, "ok")
    taken = await _lease(job)
    assert [r["holderIdentity"].split("_")[0] for r in (last, taken)] == ["first", "second"]
    waited = _written(taken["acquireTime"]) - _written(last["renewTime"])
    assert LEASE_SECONDS <= waited.total_seconds() < LEASE_SECONDS + 2 * RETRY_SECONDS + 2.0


async def _lease(job: Job) -> JSON:
    """The record of the election."""
    lease = await job.api.call("GET", path_of("leases", SYSTEM_NAMESPACE, LEASE_NAME))
    record: JSON = lease["spec"]
    return record


def _written(time_of_day: str) -> datetime:
    return datetime.fromisoformat(time_of_day)


async def test_case_49_a_leader_that_wakes_after_its_lease_writes_nothing_and_ends(
    front: Front, leader_first: list[OperatorProcess], job: Job
) -> None:
    first, second = leader_first
    await job.train()
    first.freeze()
    # The sleeper has plenty to write when it wakes: a lost pod, a new job.
    await job.fail_rank(1)
    await job.pods_of_attempt(2)
    await job.join(attempt=2)
    await job.wait_for("Running")
    woken = time.monotonic()
    first.thaw()
    assert await first.ended() == 1
    assert "this process ends:" in first.log
    assert "Traceback" not in first.log
    writes = [
        r for r in front.proxy.requests if r.at >= woken and r.verb not in {"get", "list", "watch"}
    ]
    assert writes == []
    assert (await job.status())["attempt"] == 2
    assert await second.says(200, "ok")


async def test_case_50_of_two_that_start_at_once_one_leads_and_the_other_stands_by(
    replicas: list[OperatorProcess], job: Job
) -> None:
    for replica in replicas:
        replica.start()

    async def decided() -> bool:
        said = sorted([(await asyncio.to_thread(r.ask))[1] for r in replicas])
        return said[0] == "ok" and said[1].startswith("standing by: ")

    await eventually(decided, "one leads, the other stands by")
    await job.train()
    await job.fail_rank(0)
    await job.pods_of_attempt(2)
    assert (await job.status())["restarts"] == 1


async def test_case_16_what_a_lagging_api_server_shows_leads_to_no_harm(
    front: Front, second_front: Front, job: Job
) -> None:
    """The lagging API server is the proxy: it answers reads with what was true once."""
    proxy, here = front.proxy, job.namespace
    with front.operator("before") as operator:
        await operator.ready()
        await job.train()
        with proxy.fault(verb="delete", resource="pods", namespace=here, status=500):
            await job.kubelet.end((await job.pods())[1], 1, None)
            await eventually(lambda: _in_attempt(job, 2), "attempt 2 is decided")
            operator.kill()
    with contextlib.ExitStack() as lag:
        lag.enter_context(proxy.lagging())
        with second_front.operator("meanwhile") as operator:
            await operator.ready()
            await job.pods_of_attempt(2)
            await job.join(attempt=2)
            await job.wait_for("Running")
        before, begun = await job.uids(), time.monotonic()
        with front.operator("misled") as operator:
            await operator.ready()
            await eventually(lambda: _writes(front, here, begun), "it acts on what it sees")
            assert await job.uids() == before
            lag.close()
            await job.progress(step=7, attempt=2)
            await eventually(lambda: _shows_step(job, 7), "it has caught up")
    assert await job.uids() == before
    assert await _in_attempt(job, 2)


async def _in_attempt(job: Job, attempt: int) -> bool:
    return bool((await job.status()).get("attempt") == attempt)


async def _shows_step(job: Job, step: int) -> bool:
    return bool((await job.status()).get("progress", {}).get("step") == step)


async def _writes(front: Front, namespace: str, since: float) -> bool:
    return any(
        r.verb not in {"get", "list", "watch"} and r.namespace == namespace and r.at >= since
        for r in front.proxy.requests
    )


@pytest.mark.parametrize(
    ("seconds", "election"),
    [(6.0, {}), pytest.param(300.0, FULL_ELECTION, marks=pytest.mark.sweep)],
)
@pytest.mark.timeout(500)
async def test_case_52_an_outage_of_the_api_server_changes_nothing_for_a_run(
    front: Front, job: Job, other_job: Job, seconds: float, election: dict[str, object]
) -> None:
    with front.operator("outage", settings=election) as operator:
        await operator.ready()
        await job.train()
        await other_job.train()
        before = await job.uids()
        with front.proxy.outage():
            begun = time.monotonic()
            await other_job.fail_rank(0)
            while time.monotonic() < begun + seconds:
                await _restart_as_a_kubelet(operator)
                await asyncio.sleep(1.0)
        back = time.monotonic()
        while (await other_job.status())["attempt"] == 1:
            assert time.monotonic() - back < 60.0
            await _restart_as_a_kubelet(operator)
            await asyncio.sleep(0.1)
        await other_job.pods_of_attempt(2)
        assert time.monotonic() - back < 60.0
        assert await job.uids() == before
        assert await job.reason() == "Running"
        assert (await job.status())["attempt"] == 1
        assert (await other_job.status())["restarts"] == 1
        assert "Traceback" not in operator.log


async def _restart_as_a_kubelet(operator: OperatorProcess) -> None:
    """A container that has ended is started again; here without the growing delay."""
    if not operator.alive:
        operator.start()


async def test_a_stop_on_request_is_quick_and_quiet(front: Front, job: Job) -> None:
    with front.operator("stopped", settings=ELECTION) as operator:
        await operator.ready()
        await job.train()
        begun = time.monotonic()
        assert await operator.terminate() == 0
        assert time.monotonic() - begun < 5.0
        assert "Traceback" not in operator.log
        assert "the Lease is released" in operator.log
