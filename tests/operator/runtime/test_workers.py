"""Workers: what becomes of a key after a look, good or bad, and the resync that brings all keys."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from ddp_operator.cluster.base import ClusterError, ConflictError, Key, NotLeadingError, Snapshot
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import Heart, first_sync, resync, resync_for_ever, work
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import DEFAULTS, NOW, job_manifest

KEY = ("team-a", "digits")


class Scripted(Controller):
    """Answers looks from a script, and notes when they came."""

    def __init__(self, *script: float | BaseException | None) -> None:
        super().__init__(FakeCluster(), Cache(), DEFAULTS, lambda: NOW)
        self.script = list(script)
        self.looks: list[float] = []
        self.refreshed: list[Key] = []
        self.on_look: Callable[[], None] = lambda: None

    async def reconcile(self, key: Key) -> float | None:
        assert key == KEY
        self.looks.append(asyncio.get_running_loop().time())
        self.on_look()
        outcome = self.script.pop(0) if self.script else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def refresh(self, key: Key) -> None:
        self.refreshed.append(key)
        raise ClusterError("the API server is away")


@contextlib.asynccontextmanager
async def at_work(controller: Controller, heart: Heart) -> AsyncIterator[WorkQueue[Key]]:
    queue: WorkQueue[Key] = WorkQueue(base=1.0, seed=1)
    worker = asyncio.ensure_future(work(queue, controller, heart))
    yield queue
    await asyncio.sleep(1000)
    assert not worker.done(), "a worker never ends"
    worker.cancel()


def looks(controller: Scripted, heart: Heart | None = None) -> list[float]:
    """When a key that is added once is looked at."""

    async def body() -> None:
        async with at_work(controller, heart or Heart()) as queue:
            queue.add(KEY)

    run_in_fake_time(body())
    return controller.looks


def test_a_job_is_looked_at_again_after_the_time_that_the_look_asked_for() -> None:
    assert looks(Scripted(5.0, 2.0, None)) == [0, 5, 7]


def test_a_look_that_asks_for_nothing_waits_for_an_event() -> None:
    assert looks(Scripted(None)) == [0]


@pytest.mark.parametrize(
    "error",
    [ClusterError("timeout", status=500), ConflictError("stale", status=409), KeyError("oops")],
    ids=["refusal", "conflict", "surprise"],
)
def test_a_failed_look_is_repeated_with_growing_patience(error: BaseException) -> None:
    first, second, third, fourth = looks(Scripted(error, error, error, None))
    assert 0.5 <= second - first <= 1
    assert 1 <= third - second <= 2
    assert 2 <= fourth - third <= 4


def test_patience_begins_anew_after_a_good_look() -> None:
    error = ClusterError("no")
    found = looks(Scripted(error, error, error, 100.0, error, None))
    assert 0.5 <= found[-1] - found[-2] <= 1


def test_the_server_is_given_the_time_that_it_asks_for() -> None:
    first, second = looks(Scripted(ClusterError("busy", status=429, retry_after=30), None))
    assert second - first == 30


def test_only_a_conflict_makes_the_job_be_read_anew() -> None:
    controller = Scripted(ClusterError("no"), ConflictError("stale"), None)
    looks(controller)
    assert controller.refreshed == [KEY]


def test_the_heart_beats_while_a_worker_is_on_a_job() -> None:
    heart, seen = Heart(), []
    controller = Scripted(ClusterError("no"), None)
    controller.on_look = lambda: seen.append(bool(heart._busy))
    looks(controller, heart)
    assert seen == [True, True]
    assert heart.longest() == 0.0


async def test_a_resync_fills_the_cache_and_looks_at_every_job() -> None:
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue[Key]()
    cluster.apply(job_manifest())
    gone = job_manifest("gone")
    gone["metadata"]["resourceVersion"] = "0"
    cache.put_job(gone)

    async def take() -> Snapshot:
        return cluster.snapshot()

    await resync(take, cache, queue)
    assert cache.keys() == [KEY]
    assert {await queue.get(), await queue.get()} == {KEY, ("team-a", "gone")}


def test_a_key_that_is_refused_delays_no_other() -> None:
    """429 with Retry-After is for one key; the others go on."""
    seen: list[tuple[str, float]] = []

    class Throttled(Scripted):
        async def reconcile(self, key: Key) -> float | None:
            seen.append((key[1], asyncio.get_running_loop().time()))
            if len(seen) == 1:
                raise ClusterError("too many requests", status=429, retry_after=30)
            return None

    async def body() -> None:
        async with at_work(Throttled(), Heart()) as queue:
            queue.add(KEY)
            await asyncio.sleep(1)
            queue.add(KEY)
            queue.add(("team-a", "other"))

    run_in_fake_time(body())
    assert seen == [("digits", 0), ("other", 1), ("digits", 30)]


def test_who_finds_that_it_does_not_lead_works_no_more() -> None:
    async def body() -> None:
        queue: WorkQueue[Key] = WorkQueue()
        queue.add(KEY)
        controller = Scripted(NotLeadingError("the Lease is held by b"), None)
        with pytest.raises(NotLeadingError):
            await work(queue, controller, Heart())
        assert len(controller.looks) == 1

    run_in_fake_time(body())


def test_the_first_list_is_tried_until_it_comes() -> None:
    async def body() -> None:
        heart, cluster, cache = Heart(), FakeCluster(), Cache()
        cluster.apply(job_manifest())
        problems: list[ClusterError] = [
            ClusterError("no answer"),
            ClusterError("busy", status=429, retry_after=9),
        ]

        async def take() -> Snapshot:
            assert not heart.synced
            if problems:
                raise problems.pop(0)
            return cluster.snapshot()

        await first_sync(take, cache, WorkQueue[Key](), heart)
        assert asyncio.get_running_loop().time() == 2 + 9
        assert (heart.synced, heart.problem) == (True, "busy")
        assert cache.keys() == [KEY]

    run_in_fake_time(body())


def test_a_resync_that_failed_is_repeated_soon_and_heals_what_the_watch_missed() -> None:
    async def body() -> list[float]:
        cluster, cache, queue = FakeCluster(), Cache(), WorkQueue[Key]()
        cluster.apply(job_manifest())
        times: list[float] = []

        async def take() -> Snapshot:
            times.append(asyncio.get_running_loop().time())
            if len(times) <= 2:
                raise ClusterError("timeout", status=504)
            return cluster.snapshot()

        task = asyncio.ensure_future(resync_for_ever(take, cache, queue, 600))
        assert await queue.get() == KEY
        await asyncio.sleep(1500)
        task.cancel()
        return [b - a for a, b in itertools.pairwise([0.0, *times])]

    waits = run_in_fake_time(body())
    expected = [600, 30, 30, 600, 600]
    assert len(waits) >= 4
    for waited, about in zip(waits, expected, strict=False):
        assert 0.9 * about <= waited <= 1.1 * about


async def test_a_failed_resync_leaves_the_cache_as_it_was() -> None:
    cache, queue = Cache(), WorkQueue[Key]()
    cache.put_job(job_manifest())

    async def take() -> Snapshot:
        raise ClusterError("the API server is away")

    with pytest.raises(ClusterError):
        await resync(take, cache, queue)
    assert cache.keys() == [KEY]
    assert len(queue) == 0
