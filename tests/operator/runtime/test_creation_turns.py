"""Jobs that create pods take turns with other jobs, and show their progress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from ddp_operator.cluster.base import Key, Listing, Manifest, namespace_of
from ddp_operator.limits import LONGEST_TURN_SECONDS
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity, all_workers
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_time import run_in_fake_time
from tests.operator.support import DEFAULTS, NOW, job_manifest

REQUESTS = 32


class SlowCluster(FakeCluster):
    """API server that creates a number of pods per second and delivers watch events at once."""

    def __init__(self, queue: WorkQueue[Key], per_second: float) -> None:
        super().__init__()
        self._queue, self._each, self._next = queue, 1 / per_second, 0.0
        self._places = asyncio.Semaphore(REQUESTS)
        self.pod_exists = asyncio.Condition()
        self.first_pod: dict[str, float] = {}
        """Loop time of each job's first pod."""
        self.lists = 0

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        loop = asyncio.get_running_loop()
        if manifest["kind"] == "Pod":
            async with self._places:
                self._next = max(self._next, loop.time()) + self._each
                await asyncio.sleep(self._next - loop.time())
        created = await super().create(manifest, on_restored)
        name = manifest["metadata"]["labels"]["ddp-trainer.dev/job-name"]
        if manifest["kind"] == "Pod":
            self.first_pod.setdefault(name, loop.time())
            self._queue.add((manifest["metadata"]["namespace"], name), urgent=True)
            async with self.pod_exists:
                self.pod_exists.notify_all()
        return created

    async def wait_for_pods(self, count: int) -> None:
        async with self.pod_exists:
            await self.pod_exists.wait_for(lambda: len(self.children["Pod"]) >= count)

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        self.lists += 1
        return await super().list_pods(namespace, labels, expected)


class TimedController(Controller):
    """Controller that records the longest reconcile in loop time."""

    longest = 0.0

    async def reconcile(self, key: Key) -> float | None:
        began = asyncio.get_running_loop().time()
        try:
            return await super().reconcile(key)
        finally:
            self.longest = max(self.longest, asyncio.get_running_loop().time() - began)


class Bench:
    def __init__(self, per_second: float) -> None:
        self.queue: WorkQueue[Key] = WorkQueue(group_of=namespace_of)
        self.cluster, cache = SlowCluster(self.queue, per_second), Cache()
        self.cluster.watching = cache
        loop = asyncio.get_running_loop()
        self.controller = TimedController(
            self.cluster,
            cache,
            DEFAULTS,
            lambda: NOW + timedelta(seconds=loop.time()),
            agents=DirectStatuses(self.cluster),
            in_flight=REQUESTS,
            others_wait=lambda: len(self.queue) > 0,
        )

    def submit(self, namespace: str, name: str, nodes: int) -> None:
        job = job_manifest(name, nodes=nodes)
        job["metadata"] |= {"namespace": namespace, "uid": f"uid-{name}"}
        self.cluster.apply(job)
        self.queue.add((namespace, name))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run 8 workers for the time of the context."""
        coroutines = all_workers(8, self.queue, self.controller, WorkerActivity(), lambda *_: None)
        workers = [asyncio.ensure_future(one) for one in coroutines]
        yield
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


@pytest.mark.parametrize("namespace", ["team-a", "team-b"])
def test_small_job_does_not_wait_for_the_pods_of_a_large_job(namespace: str) -> None:
    """Four workers take jobs that are not urgent. Each would create all pods of one large job."""

    async def body() -> None:
        bench = Bench(per_second=80.0)
        for number in range(4):
            bench.submit("team-a", f"large-{number}", 120)
        async with bench.running():
            await bench.cluster.wait_for_pods(40)
            bench.submit(namespace, "small", 2)
            asked = asyncio.get_running_loop().time()
            await bench.cluster.wait_for_pods(4 * 120 + 2)
        assert bench.cluster.first_pod["small"] - asked <= 2.0
        assert bench.cluster.lists == 0, "a turn that continues needs no list of all pods"

    run_in_fake_time(body())


def test_creation_of_many_pods_shows_its_progress() -> None:
    """Without progress in the status, a worker that creates pods for 300 s would count as stuck."""

    async def body() -> None:
        bench = Bench(per_second=4.0)
        bench.submit("team-a", "large", 400)
        async with bench.running():
            await bench.cluster.wait_for_pods(400)
        writes = bench.cluster.writes
        assert writes[0] == "status large", "the attempt is recorded before its first pod"
        assert len({w for w in writes if w.startswith("create Pod")}) == 400
        assert bench.controller.longest <= LONGEST_TURN_SECONDS + REQUESTS / 4.0 + 0.1
        messages = [
            next(c["message"] for c in status["conditions"] if c["type"] == "Succeeded")
            for status in bench.cluster.statuses
        ]
        counts = [int(text.split()[0]) for text in messages if "of 400 pods exist" in text]
        assert len(counts) >= 2
        assert counts == sorted(counts)
        assert len(messages) <= 5, "the intervals between two writes double"
        assert bench.cluster.lists == 0

    run_in_fake_time(body())
