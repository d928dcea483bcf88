"""Tests that a large job does not block the event loop."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ddp_operator.builders.defaults import Defaults
from ddp_operator.limits import LARGE_JOB, PAUSE_FACTOR
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import DEFAULTS, NOW, job_manifest

KEY = ("team-a", "digits")


def controller_of(nodes: int) -> Controller:
    cluster, cache = FakeCluster(), Cache()
    cluster.watching = cache
    cache.put_job(cluster.apply(job_manifest(nodes=nodes)))
    return Controller(cluster, cache, DEFAULTS, lambda: NOW, agents=DirectStatuses(cluster))


def use_decide(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    """Call a function before each decision."""

    def wrapped(world: World, defaults: Defaults) -> Plan:
        before()
        return decide(world, defaults)

    monkeypatch.setattr("ddp_operator.runtime.decider.decide", wrapped)


async def test_decision_about_a_large_job_leaves_the_event_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def wait_for_the_loop() -> None:
        assert released.wait(10.0), "the event loop waits for the decision"

    use_decide(monkeypatch, wait_for_the_loop)
    deciding = asyncio.ensure_future(controller_of(LARGE_JOB).reconcile(KEY))
    await asyncio.sleep(0)
    released.set()
    await deciding


async def test_decision_about_a_small_job_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    use_decide(monkeypatch, lambda: threads.append(threading.current_thread()))
    await controller_of(2).reconcile(KEY)
    assert set(threads) == {threading.main_thread()}


async def test_costly_decision_is_followed_by_a_longer_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(
        "ddp_operator.runtime.decider.time", SimpleNamespace(thread_time=lambda: next(clock))
    )
    controller = controller_of(2)
    assert controller.pause_seconds(KEY) == 0.0
    await controller.reconcile(KEY)
    assert controller.pause_seconds(KEY) == PAUSE_FACTOR * 1.0


async def test_cheap_decision_is_followed_by_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(number * 0.001 for number in range(100))
    monkeypatch.setattr(
        "ddp_operator.runtime.decider.time", SimpleNamespace(thread_time=lambda: next(clock))
    )
    controller = controller_of(2)
    await controller.reconcile(KEY)
    assert controller.pause_seconds(KEY) == 0.0
