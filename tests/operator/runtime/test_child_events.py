"""Events of children's watches update the cache and queue the jobs that changed."""

import asyncio
import logging

import pytest

from ddp_operator.cluster.base import ClusterError, Key, Listing, Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.child_events import ChildEvents
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity
from tests.operator.support import active_job, pod_manifest

KEY = ("team-a", "digits")


def pod(index: int = 0, *, version: int = 1) -> Manifest:
    return keep_used_fields("Pod", pod_manifest(active_job(), index, version=version))


class Bench:
    def __init__(self) -> None:
        self.cache, self.queue, self.activity = Cache(), WorkQueue[Key](), WorkerActivity()
        self.events = ChildEvents(self.cache, self.queue, self.activity)

    async def queued(self) -> bool:
        """Return whether the job is queued, and empty the queue."""
        if not len(self.queue):
            return False
        assert await self.queue.get(urgent=True) == KEY
        self.queue.done(KEY)
        return True

    def relist(self, *pods: Manifest, version: int = 9, namespace: str | None = None) -> None:
        with self.events.relist("Pod", namespace) as take:
            take(Listing(pods, version))

    def names(self) -> list[str]:
        return [child["metadata"]["name"] for child in self.cache.children("Pod", KEY)]


@pytest.mark.parametrize("kind", ["Pod", "Service", "NetworkPolicy"])
async def test_event_of_a_child_queues_its_job_as_urgent(kind: str) -> None:
    bench = Bench()
    bench.events.put(kind, pod())
    assert bench.cache.children(kind, KEY) == [pod()]
    assert await bench.queued()
    bench.events.drop(kind, pod())
    assert bench.cache.children(kind, KEY) == []
    assert await bench.queued()


async def test_child_of_no_job_queues_nothing() -> None:
    bench, foreign = Bench(), pod()
    foreign["metadata"]["labels"] = {}
    bench.events.put("Pod", foreign)
    bench.relist(foreign)
    assert not await bench.queued()


async def test_list_drops_what_vanished_and_queues_only_jobs_that_changed() -> None:
    bench = Bench()
    bench.relist(pod(0), pod(1))
    assert await bench.queued()
    bench.relist(pod(0), pod(1))
    assert not await bench.queued()
    bench.relist(pod(0))
    assert (bench.names(), await bench.queued()) == (["digits-0"], True)
    bench.relist(pod(0, version=5))
    assert await bench.queued()


async def test_list_of_one_namespace_keeps_the_children_of_others() -> None:
    bench = Bench()
    bench.relist(pod(), namespace="team-a")
    bench.relist(namespace="team-b")
    assert bench.names() == ["digits-0"]
    bench.relist(namespace="team-a")
    assert bench.names() == []


async def test_list_does_not_undo_what_a_watch_reported_meanwhile() -> None:
    bench = Bench()
    bench.events.put("Pod", pod(0))
    with bench.events.relist("Pod", None) as take:
        bench.events.drop("Pod", pod(0))
        bench.events.put("Pod", pod(1, version=20))
        take(Listing([pod(0)], 9))
    assert bench.names() == ["digits-1"]


def test_refused_watch_is_logged_once_and_reported_until_it_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        bench, refused = Bench(), ClusterError("no rights", status=403)
        sentence = "the pods of the namespace b are not watched: no rights"
        with caplog.at_level(logging.INFO):
            for error in (None, refused, refused):
                bench.events.report("Pod", "b", error)
            assert bench.activity.refused_watches == {("Pod", "b"): sentence}
            bench.events.report("Pod", "b", None)
        assert bench.activity.refused_watches == {}
        again = "the pods of the namespace b are watched again"
        assert [record.message for record in caplog.records] == [sentence, again]

    asyncio.run(run())


async def test_watch_that_fails_without_a_refusal_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.events.report("Service", None, ClusterError("starting", status=503))
    assert bench.activity.refused_watches == {}
    assert caplog.messages == ["the services are not watched: starting"]
