"""Workers requeue keys after a success or an error, and the resync adds all keys."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from ddp_operator.cluster.base import (
    ClusterError,
    ClusterSnapshot,
    ConflictError,
    Key,
    NotLeadingError,
)
from ddp_operator.limits import Backoff
from ddp_operator.runtime import workers
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import (
    WorkerActivity,
    all_workers,
    first_sync,
    resync,
    resync_periodically,
    work,
)
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import DEFAULTS, NOW, job_manifest

KEY = ("team-a", "digits")


class ScriptedController(Controller):
    """Controller with scripted results that records the time of each reconcile."""

    def __init__(self, *script: float | BaseException | None) -> None:
        cluster = FakeCluster()
        super().__init__(cluster, Cache(), DEFAULTS, lambda: NOW, agents=DirectStatuses(cluster))
        self.script = list(script)
        self.reconciles: list[float] = []
        self.refreshed: list[Key] = []
        self.on_reconcile: Callable[[], None] = lambda: None

    async def reconcile(self, key: Key) -> float | None:
        assert key == KEY
        self.reconciles.append(asyncio.get_running_loop().time())
        self.on_reconcile()
        outcome = self.script.pop(0) if self.script else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def refresh(self, key: Key) -> None:
        self.refreshed.append(key)
        raise ClusterError("the API server is unavailable")


@contextlib.asynccontextmanager
async def running_worker(
    controller: Controller, activity: WorkerActivity
) -> AsyncIterator[WorkQueue[Key]]:
    queue: WorkQueue[Key] = WorkQueue(backoff=Backoff(first=1.0, longest=60.0), seed=1)
    worker = asyncio.ensure_future(work(queue, controller, activity))
    yield queue
    await asyncio.sleep(1000)
    assert not worker.done(), "a worker must never end"
    worker.cancel()


def reconcile_times(
    controller: ScriptedController, activity: WorkerActivity | None = None
) -> list[float]:
    """Return the times at which a key that is added once is reconciled."""

    async def body() -> None:
        async with running_worker(controller, activity or WorkerActivity()) as queue:
            queue.add(KEY)

    run_in_fake_time(body())
    return controller.reconciles


class CreatingController(Controller):
    """Controller that takes a minute for each new job, and no time for other jobs."""

    def __init__(self) -> None:
        cluster = FakeCluster()
        super().__init__(cluster, Cache(), DEFAULTS, lambda: NOW, agents=DirectStatuses(cluster))
        self.seen: dict[Key, float] = {}

    async def reconcile(self, key: Key) -> float | None:
        self.seen[key] = asyncio.get_running_loop().time()
        if key[1].startswith("new"):
            await asyncio.sleep(60.0)
        return None


@pytest.mark.parametrize("number", [2, 5, 8])
def test_urgent_job_does_not_wait_for_new_jobs(number: int) -> None:
    controller = CreatingController()

    async def body() -> None:
        queue: WorkQueue[Key] = WorkQueue()
        for index in range(100):
            queue.add(("team-a", f"new-{index}"))
        running = all_workers(number, queue, controller, WorkerActivity(), lambda *_: None)
        tasks = [asyncio.ensure_future(one) for one in running]
        await asyncio.sleep(10.0)
        assert len(controller.seen) == number - number // 2
        queue.add(KEY, urgent=True)
        await asyncio.sleep(1.0)
        assert controller.seen[KEY] == 10.0
        for task in tasks:
            task.cancel()

    run_in_fake_time(body())


def test_single_worker_takes_all_jobs() -> None:
    controller = ScriptedController()

    async def body() -> None:
        queue: WorkQueue[Key] = WorkQueue()
        queue.add(KEY)
        (worker,) = all_workers(1, queue, controller, WorkerActivity(), lambda *_: None)
        task = asyncio.ensure_future(worker)
        await asyncio.sleep(1.0)
        task.cancel()

    run_in_fake_time(body())
    assert controller.reconciles == [0.0]


def test_job_is_reconciled_again_after_the_requested_time() -> None:
    assert reconcile_times(ScriptedController(5.0, 2.0, None)) == [0, 5, 7]


def test_job_without_a_requested_time_waits_for_an_event() -> None:
    assert reconcile_times(ScriptedController(None)) == [0]


@pytest.mark.parametrize(
    "error",
    [ClusterError("timeout", status=500), ConflictError("stale", status=409), KeyError("oops")],
    ids=["refusal", "conflict", "unexpected error"],
)
def test_failed_reconcile_is_repeated_with_growing_delays(error: BaseException) -> None:
    first, second, third, fourth = reconcile_times(ScriptedController(error, error, error, None))
    assert 0.5 <= second - first <= 1
    assert 1 <= third - second <= 2
    assert 2 <= fourth - third <= 4


def test_backoff_is_reset_after_a_success() -> None:
    error = ClusterError("no")
    found = reconcile_times(ScriptedController(error, error, error, 100.0, error, None))
    assert 0.5 <= found[-1] - found[-2] <= 1


def test_header_retry_after_of_the_api_server_is_respected() -> None:
    first, second = reconcile_times(
        ScriptedController(ClusterError("busy", status=429, retry_after=30), None)
    )
    assert second - first == 30


def test_job_is_read_again_only_after_a_conflict() -> None:
    controller = ScriptedController(ClusterError("no"), ConflictError("stale"), None)
    reconcile_times(controller)
    assert controller.refreshed == [KEY]


def test_activity_records_a_busy_worker() -> None:
    activity, seen = WorkerActivity(), []
    controller = ScriptedController(ClusterError("no"), None)
    controller.on_reconcile = lambda: seen.append(bool(activity._busy))
    reconcile_times(controller, activity)
    assert seen == [True, True]
    assert activity.longest_busy_seconds() == 0.0


async def test_resync_fills_the_cache_and_queues_every_job() -> None:
    cluster, cache, queue = FakeCluster(), Cache(), WorkQueue[Key]()
    cluster.apply(job_manifest())
    gone = job_manifest("gone")
    gone["metadata"]["resourceVersion"] = "0"
    cache.put_job(gone)

    async def take_snapshot() -> ClusterSnapshot:
        return cluster.snapshot()

    await resync(take_snapshot, cache, queue)
    assert cache.keys() == [KEY]
    assert {await queue.get(), await queue.get()} == {KEY, ("team-a", "gone")}


async def test_resync_queues_jobs_that_lack_pods_first() -> None:
    cluster, queue = FakeCluster(), WorkQueue[Key]()
    for name in ("a", "b", "c"):
        lacks = {"a": 0, "b": 2, "c": 2}[name]
        ended = {"completionTime": NOW.isoformat()} if name == "c" else {}
        cluster.apply(job_manifest(name))
        cluster.jobs["team-a", name]["status"] = {"replicas": lacks, **ended}

    async def take_snapshot() -> ClusterSnapshot:
        return cluster.snapshot()

    await resync(take_snapshot, Cache(), queue)
    assert (await queue.get())[1] == "b"


def test_refused_job_does_not_delay_other_jobs() -> None:
    """A 429 with Retry-After delays only one key."""
    seen: list[tuple[str, float]] = []

    class Throttled(ScriptedController):
        async def reconcile(self, key: Key) -> float | None:
            seen.append((key[1], asyncio.get_running_loop().time()))
            if len(seen) == 1:
                raise ClusterError("too many requests", status=429, retry_after=30)
            return None

    async def body() -> None:
        async with running_worker(Throttled(), WorkerActivity()) as queue:
            queue.add(KEY)
            await asyncio.sleep(1)
            queue.add(KEY)
            queue.add(("team-a", "other"))

    run_in_fake_time(body())
    assert seen == [("digits", 0), ("other", 1), ("digits", 30)]


def test_worker_ends_when_the_process_is_not_the_leader() -> None:
    async def body() -> None:
        queue: WorkQueue[Key] = WorkQueue()
        queue.add(KEY)
        controller = ScriptedController(NotLeadingError("the Lease is held by b"), None)
        with pytest.raises(NotLeadingError):
            await work(queue, controller, WorkerActivity())
        assert len(controller.reconciles) == 1

    run_in_fake_time(body())


def test_first_sync_is_retried_until_it_succeeds() -> None:
    async def body() -> None:
        activity, cluster, cache = WorkerActivity(), FakeCluster(), Cache()
        cluster.apply(job_manifest())
        problems: list[ClusterError] = [
            ClusterError("no answer"),
            ClusterError("busy", status=429, retry_after=9),
        ]

        async def take_snapshot() -> ClusterSnapshot:
            assert not activity.synced
            if problems:
                raise problems.pop(0)
            return cluster.snapshot()

        await first_sync(take_snapshot, cache, WorkQueue[Key](), activity)
        assert asyncio.get_running_loop().time() == 2 + 9
        assert (activity.synced, activity.problem) == (True, "busy")
        assert cache.keys() == [KEY]

    run_in_fake_time(body())


def test_failed_resync_is_repeated_soon_and_finds_missed_events() -> None:
    async def body() -> list[float]:
        cluster, cache, queue = FakeCluster(), Cache(), WorkQueue[Key]()
        cluster.apply(job_manifest())
        times: list[float] = []

        async def take_snapshot() -> ClusterSnapshot:
            times.append(asyncio.get_running_loop().time())
            if len(times) <= 2:
                raise ClusterError("timeout", status=504)
            return cluster.snapshot()

        task = asyncio.ensure_future(resync_periodically(take_snapshot, cache, queue, 600))
        assert await queue.get() == KEY
        await asyncio.sleep(1500)
        task.cancel()
        return [b - a for a, b in itertools.pairwise([0.0, *times])]

    waits = run_in_fake_time(body())
    expected = [600, 30, 30, 600, 600]
    assert len(waits) >= 4
    for waited, nominal in zip(waits, expected, strict=False):
        assert 0.9 * nominal <= waited <= 1.1 * nominal


def test_job_of_an_unserved_namespace_causes_a_resync_within_30_s() -> None:
    times: list[float] = []
    activity = WorkerActivity()

    async def take_snapshot() -> ClusterSnapshot:
        times.append(asyncio.get_running_loop().time())
        return FakeCluster().snapshot()

    async def body() -> None:
        resyncs = resync_periodically(
            take_snapshot, Cache(), WorkQueue(), 600, activity.resync_wanted
        )
        task = asyncio.ensure_future(resyncs)
        await asyncio.sleep(100)
        assert activity.is_listed("team-a")
        await asyncio.sleep(100)
        assert times == []
        activity.unserved_namespaces = {"team-a": "pods is forbidden"}
        for _ in range(10):
            assert not activity.is_listed("team-a")
            await asyncio.sleep(10)
        task.cancel()

    run_in_fake_time(body())
    assert 200 <= times[0] <= 230
    assert len(times) <= 4


def test_memory_is_returned_after_a_resync_and_once_more_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, float]] = []

    def record(name: str) -> None:
        events.append((name, asyncio.get_running_loop().time()))

    monkeypatch.setattr(workers, "release_memory", lambda: record("release"))

    async def take_snapshot() -> ClusterSnapshot:
        record("list")
        return FakeCluster().snapshot()

    async def body() -> None:
        task = asyncio.ensure_future(resync_periodically(take_snapshot, Cache(), WorkQueue(), 60))
        await asyncio.sleep(170)
        task.cancel()

    run_in_fake_time(body())
    assert [name for name, _ in events[:6]] == 2 * ["release", "list", "release"]
    times = [time for _, time in events]
    assert times[1] == times[2]
    assert 27 <= times[3] - times[2] <= 33


async def test_failed_resync_does_not_change_the_cache() -> None:
    cache, queue = Cache(), WorkQueue[Key]()
    cache.put_job(job_manifest())

    async def take_snapshot() -> ClusterSnapshot:
        raise ClusterError("the API server is unavailable")

    with pytest.raises(ClusterError):
        await resync(take_snapshot, cache, queue)
    assert cache.keys() == [KEY]
    assert len(queue) == 0
