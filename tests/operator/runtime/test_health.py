"""The operator's health endpoints, over real HTTP."""

import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from ddp_operator.cluster.base import Request
from ddp_operator.runtime import health
from ddp_operator.runtime.workers import WorkerActivity

KEY = ("team-a", "digits")
SERVED, UNSERVED = (Request("GET", "pods", status, 0.1) for status in (404, 500))


@pytest.fixture
async def served() -> AsyncIterator[tuple[WorkerActivity, str]]:
    """Yield an activity and the address of its health endpoints."""
    activity, registry = WorkerActivity(), CollectorRegistry()
    Gauge("one", "One.", registry=registry).set(1)
    runner = await health.serve_health(activity, registry, 0)
    yield activity, address_of(runner)
    await runner.cleanup()


def address_of(runner: web.AppRunner) -> str:
    # With port 0 each address family gets a different port.
    (port,) = [address[1] for address in runner.addresses if address[0] == "0.0.0.0"]  # noqa: S104
    return f"http://127.0.0.1:{port}"


async def get(address: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return answer.status, await answer.text()


async def test_operator_is_ready_after_the_first_sync(
    served: tuple[WorkerActivity, str],
) -> None:
    activity, address = served
    assert await get(f"{address}/readyz") == (503, "jobs and pods have not been listed yet\n")
    activity.synced = True
    assert await get(f"{address}/readyz") == (200, "ok\n")
    activity.unserved_namespaces = {"b": "pods is forbidden"}
    activity.refused_watches = {
        ("Pod", "b"): "the pods of the namespace b are not watched: pods is forbidden",
        ("Pod", "c"): "the pods of the namespace c are not watched: pods is forbidden",
    }
    text = (
        "ok\nthe namespace b is not served: pods is forbidden\n"
        "the pods of the namespace c are not watched: pods is forbidden\n"
    )
    assert await get(f"{address}/readyz") == (200, text)


async def test_operator_is_healthy_unless_a_worker_is_stuck(
    served: tuple[WorkerActivity, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    activity, address = served
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.0)
    assert (await get(f"{address}/healthz"))[0] == 200
    activity.begin(KEY)
    status, text = await get(f"{address}/healthz")
    assert status == 503
    assert text.startswith("a worker is stuck for ")
    activity.end(KEY)
    assert (await get(f"{address}/healthz"))[0] == 200


async def test_operator_is_unhealthy_when_all_requests_fail_for_minutes(
    served: tuple[WorkerActivity, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    activity, address = served
    at = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    activity.record_request(SERVED)
    at += 3600
    activity.record_request(UNSERVED)
    at += 3600
    assert activity.unserved_seconds() == 0.0, "there is only one failure and no request since"
    activity.record_request(UNSERVED)
    assert activity.unserved_seconds() == 3600.0
    activity.record_request(SERVED)
    assert activity.unserved_seconds() == 0.0
    for _ in range(11):
        activity.record_request(UNSERVED)
        at += 30
    monkeypatch.undo()
    assert await get(f"{address}/healthz") == (200, "ok\n")
    monkeypatch.setattr(health, "UNSERVED_SECONDS", 299.0)
    sentence = "all requests to the API server failed for 300 s\n"
    assert await get(f"{address}/healthz") == (503, sentence)
    activity.record_request(SERVED)
    assert await get(f"{address}/healthz") == (200, "ok\n")


async def test_metrics_are_served_as_text(served: tuple[WorkerActivity, str]) -> None:
    status, text = await get(f"{served[1]}/metrics")
    assert status == 200
    assert "# TYPE one gauge\none 1.0\n" in text


async def test_operator_reports_why_it_is_not_ready(served: tuple[WorkerActivity, str]) -> None:
    activity, address = served
    activity.problem = "ddpjobs is forbidden"
    sentence = "jobs and pods have not been listed yet: ddpjobs is forbidden\n"
    assert await get(f"{address}/readyz") == (503, sentence)


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
async def test_standby_replica_reports_the_leader(good: bool, status: int) -> None:
    runner = await health.serve_health(
        WorkerActivity(), CollectorRegistry(), 0, lambda: (good, "standing by: a holds the Lease")
    )
    try:
        answer = await get(f"{address_of(runner)}/readyz")
        assert answer == (status, "standing by: a holds the Lease\n")
        assert await get(f"{address_of(runner)}/healthz") == (200, "ok\n")
    finally:
        await runner.cleanup()


async def test_busy_worker_does_not_make_the_operator_unhealthy(
    served: tuple[WorkerActivity, str],
) -> None:
    activity, address = served
    activity.begin(KEY)
    assert (await get(f"{address}/healthz"))[0] == 200
    assert activity.longest_busy_seconds() < health.STUCK_SECONDS
