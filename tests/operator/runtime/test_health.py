"""The operator's health endpoints, over real HTTP."""

import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from ddp_operator.runtime import health
from ddp_operator.runtime.workers import Heart

KEY = ("team-a", "digits")


@pytest.fixture
async def heart() -> AsyncIterator[tuple[Heart, str]]:
    """A heart and the address that tells of it."""
    beating = Heart()
    runner = await health.serve_health(beating, 0)
    yield beating, where(runner)
    await runner.cleanup()


def where(runner: web.AppRunner) -> str:
    # Without a given port each family of addresses gets its own.
    (port,) = [address[1] for address in runner.addresses if address[0] == "0.0.0.0"]  # noqa: S104
    return f"http://127.0.0.1:{port}"


async def ask(address: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return answer.status, await answer.text()


async def test_the_operator_is_ready_once_it_has_seen_everything(heart: tuple[Heart, str]) -> None:
    beating, address = heart
    assert await ask(f"{address}/readyz") == (503, "jobs and pods have not been listed yet\n")
    beating.synced = True
    assert await ask(f"{address}/readyz") == (200, "ok\n")


async def test_the_operator_is_healthy_while_no_worker_is_stuck(
    heart: tuple[Heart, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beating, address = heart
    monkeypatch.setattr(health, "STUCK_SECONDS", 0.0)
    assert (await ask(f"{address}/healthz"))[0] == 200
    beating.begin(KEY)
    status, text = await ask(f"{address}/healthz")
    assert status == 503
    assert text.startswith("a worker is stuck for ")
    beating.end(KEY)
    assert (await ask(f"{address}/healthz"))[0] == 200


async def test_the_operator_is_unhealthy_when_requests_fail_for_minutes(
    heart: tuple[Heart, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beating, address = heart
    at = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    beating.heard(True)
    at += 3600
    beating.heard(False)
    at += 3600
    assert beating.unserved() == 0.0, "one failure, and nothing was tried since"
    beating.heard(False)
    assert beating.unserved() == 3600.0
    beating.heard(True)
    assert beating.unserved() == 0.0
    for _ in range(11):
        beating.heard(False)
        at += 30
    monkeypatch.undo()
    assert await ask(f"{address}/healthz") == (200, "ok\n")
    monkeypatch.setattr(health, "UNSERVED_SECONDS", 299.0)
    sentence = "all requests to the API server failed for 300 s\n"
    assert await ask(f"{address}/healthz") == (503, sentence)
    beating.heard(True)
    assert await ask(f"{address}/healthz") == (200, "ok\n")


async def test_the_operator_says_why_it_is_not_ready(heart: tuple[Heart, str]) -> None:
    beating, address = heart
    beating.problem = "ddpjobs is forbidden"
    sentence = "jobs and pods have not been listed yet: ddpjobs is forbidden\n"
    assert await ask(f"{address}/readyz") == (503, sentence)


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
async def test_a_replica_that_stands_by_says_so(good: bool, status: int) -> None:
    runner = await health.serve_health(Heart(), 0, lambda: (good, "standing by: a leads"))
    try:
        answer = await ask(f"{where(runner)}/readyz")
        assert answer == (status, "standing by: a leads\n")
        assert await ask(f"{where(runner)}/healthz") == (200, "ok\n")
    finally:
        await runner.cleanup()


async def test_a_worker_may_be_at_work_for_minutes(heart: tuple[Heart, str]) -> None:
    beating, address = heart
    beating.begin(KEY)
    assert (await ask(f"{address}/healthz"))[0] == 200
    assert beating.longest() < health.STUCK_SECONDS
