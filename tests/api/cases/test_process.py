"""Tests that disturb the operator's process, its Lease and its connection to the API server."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.api.cases.conftest import OperatorLauncher
from tests.api.client import JSON, eventually, path_of
from tests.api.job import Job
from tests.api.operator_process import OperatorProcess
from tests.harness.install import RELEASE, SYSTEM_NAMESPACE

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
"""Election settings with the chart's durations."""


@pytest.fixture
def replicas(
    launcher: OperatorLauncher, second_launcher: OperatorLauncher
) -> Iterator[list[OperatorProcess]]:
    """Yield two candidates for the Lease, not started yet, each with a separate proxy."""
    first = launcher.operator("first", settings={**ELECTION, "identity": "first"})
    second = second_launcher.operator("second", settings={**ELECTION, "identity": "second"})
    try:
        yield [first, second]
    finally:
        first.kill()
        second.kill()


@pytest.fixture
async def leader_first(replicas: list[OperatorProcess]) -> list[OperatorProcess]:
    """Start both replicas so that the first leads and the second waits."""
    first, second = replicas
    first.start()
    await eventually(lambda: first.answers(200, "ok"), "the first replica leads")
    second.start()
    await eventually(
        lambda: second.answers(200, "standing by: first"), "the second replica waits for the Lease"
    )
    return replicas


async def test_second_replica_takes_over_within_the_lease_when_the_leader_is_killed(
    leader_first: list[OperatorProcess], job: Job
) -> None:
    first, second = leader_first
    await job.train()
    first.kill()
    last = await _lease(job)
    await job.fail_rank(1)
    await job.pods_of_attempt(2)
    assert (await job.status())["restarts"] == 1
    assert await second.answers(200, "ok")
    taken = await _lease(job)
    assert [r["holderIdentity"].split("_")[0] for r in (last, taken)] == ["first", "second"]
    waited = _time(taken["acquireTime"]) - _time(last["renewTime"])
    assert LEASE_SECONDS <= waited.total_seconds() < LEASE_SECONDS + 2 * RETRY_SECONDS + 2.0


async def _lease(job: Job) -> JSON:
    """Return the spec of the operator's Lease."""
    lease = await job.api.call("GET", path_of("leases", SYSTEM_NAMESPACE, LEASE_NAME))
    record: JSON = lease["spec"]
    return record


def _time(time_of_day: str) -> datetime:
    return datetime.fromisoformat(time_of_day)


async def test_leader_resumed_after_its_lease_expired_writes_nothing_and_exits(
    launcher: OperatorLauncher, leader_first: list[OperatorProcess], job: Job
) -> None:
    first, second = leader_first
    await job.train()
    first.pause()
    # The stopped process has writes to make when it continues, because a rank failed meanwhile.
    await job.fail_rank(1)
    await job.pods_of_attempt(2)
    await job.start_training(attempt=2)
    await job.wait_for("Running")
    woken = time.monotonic()
    first.resume()
    assert await first.wait_for_exit() == 1
    assert "this process ends:" in first.log
    assert "Traceback" not in first.log
    writes = [
        r
        for r in launcher.proxy.requests
        if r.at >= woken and r.verb not in {"get", "list", "watch"}
    ]
    assert writes == []
    assert (await job.status())["attempt"] == 2
    assert await second.answers(200, "ok")


async def test_one_of_two_replicas_started_together_leads(
    replicas: list[OperatorProcess], job: Job
) -> None:
    for replica in replicas:
        replica.start()

    async def decided() -> bool:
        answers = sorted([(await asyncio.to_thread(r.query))[1] for r in replicas])
        return answers[0] == "ok" and answers[1].startswith("standing by: ")

    await eventually(decided, "one replica leads, the other one waits")
    await job.train()
    await job.fail_rank(0)
    await job.pods_of_attempt(2)
    assert (await job.status())["restarts"] == 1


async def test_operator_makes_no_wrong_change_on_stale_reads(
    launcher: OperatorLauncher, second_launcher: OperatorLauncher, job: Job
) -> None:
    """Let the proxy act as a stale API server that answers reads with an old state."""
    proxy, here = launcher.proxy, job.namespace
    with launcher.operator("before") as operator:
        await operator.wait_until_ready()
        await job.train()
        with proxy.inject(verb="delete", resource="pods", namespace=here, status=500):
            await job.kubelet.end_container((await job.pods())[1], 1, None)
            await eventually(lambda: _in_attempt(job, 2), "the status is at attempt 2")
            operator.kill()
    with contextlib.ExitStack() as lag:
        lag.enter_context(proxy.stale_reads())
        with second_launcher.operator("meanwhile") as operator:
            await operator.wait_until_ready()
            await job.pods_of_attempt(2)
            await job.start_training(attempt=2)
            await job.wait_for("Running")
        before, started = await job.uids(), time.monotonic()
        with launcher.operator("misled") as operator:
            await operator.wait_until_ready()
            await eventually(
                lambda: _writes(launcher, here, started),
                "the operator writes because of stale reads",
            )
            assert await job.uids() == before
            lag.close()
            await job.report_progress(step=7, attempt=2)
            await eventually(lambda: job.shows_step(7), "the operator reads the current state")
    assert await job.uids() == before
    assert await _in_attempt(job, 2)


async def _in_attempt(job: Job, attempt: int) -> bool:
    return bool((await job.status()).get("attempt") == attempt)


async def _writes(launcher: OperatorLauncher, namespace: str, since: float) -> bool:
    return any(
        r.verb not in {"get", "list", "watch"} and r.namespace == namespace and r.at >= since
        for r in launcher.proxy.requests
    )


@pytest.mark.parametrize(
    ("seconds", "election"),
    [(6.0, {}), pytest.param(300.0, FULL_ELECTION, marks=pytest.mark.sweep)],
)
@pytest.mark.timeout(500)
async def test_api_server_outage_does_not_disturb_a_run(
    launcher: OperatorLauncher,
    job: Job,
    other_job: Job,
    seconds: float,
    election: dict[str, object],
) -> None:
    with launcher.operator("outage", settings=election) as operator:
        await operator.wait_until_ready()
        await job.train()
        await other_job.train()
        before = await job.uids()
        with launcher.proxy.outage():
            started = time.monotonic()
            await other_job.fail_rank(0)
            while time.monotonic() < started + seconds:
                await _restart_like_kubelet(operator)
                await asyncio.sleep(1.0)
        back = time.monotonic()
        while (await other_job.status())["attempt"] == 1:
            assert time.monotonic() - back < 60.0
            await _restart_like_kubelet(operator)
            await asyncio.sleep(0.1)
        await other_job.pods_of_attempt(2)
        assert time.monotonic() - back < 60.0
        assert await job.uids() == before
        assert await job.reason() == "Running"
        assert (await job.status())["attempt"] == 1
        assert (await other_job.status())["restarts"] == 1
        assert "Traceback" not in operator.log


async def _restart_like_kubelet(operator: OperatorProcess) -> None:
    """Start the operator again if it ended, as a kubelet does, but without CrashLoopBackOff."""
    if not operator.alive:
        operator.start()


async def test_operator_stops_on_sigterm_fast_and_without_errors(
    launcher: OperatorLauncher, job: Job
) -> None:
    with launcher.operator("stopped", settings=ELECTION) as operator:
        await operator.wait_until_ready()
        await job.train()
        started = time.monotonic()
        assert await operator.terminate() == 0
        assert time.monotonic() - started < 5.0
        assert "Traceback" not in operator.log
        assert "the Lease is released" in operator.log
