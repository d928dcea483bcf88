"""Reads of the Workload that tells why Kueue does not admit a job."""

from typing import Any

from ddp_operator.cluster.base import ClusterError
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.queue_messages import QueueMessages
from tests.operator.builders.test_kueue import OFFERED, kueue_job
from tests.operator.fake_cluster import FakeCluster
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import after, summary

GROUP = "digits-1-6f1c4"
GATED: dict[str, Any] = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "gated",
}


async def gated_bench() -> Bench:
    """Return a bench whose job waits in a queue."""
    gang = {"type": "Kueue", "queue": "research"}
    bench = Bench(defaults=OFFERED, gang=gang)
    await bench.reconcile_until_idle()
    for pod in bench.cluster.pods():
        pod["spec"].pop("nodeName")
        pod["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
        bench.cluster._store_child("Pod", pod)
        bench.cluster.change_pod(pod["metadata"]["name"], conditions=[GATED])
    await bench.reconcile_until_idle()
    return bench


async def look_at(bench: Bench, *seconds: float) -> None:
    for second in seconds:
        bench.now = after(second)
        await bench.reconcile_until_idle()


async def test_message_quotes_the_workload_at_growing_intervals() -> None:
    bench = await gated_bench()
    bench.cluster.queue_messages[GROUP] = "no room"
    await look_at(bench, 1, 4.9)
    assert bench.cluster.queue_reads == []
    await look_at(bench, 5, 6, 14.9)
    assert bench.cluster.queue_reads == [GROUP]
    assert ": no room; " in summary(bench.status())[2]
    await look_at(bench, *range(15, 600))
    assert len(bench.cluster.queue_reads) == 12


async def test_refused_read_keeps_the_job_waiting() -> None:
    bench = await gated_bench()
    bench.cluster.queue_error = ClusterError("no", status=403)
    await look_at(bench, 1, 6)
    assert ": the queue research has not admitted it" in summary(bench.status())[2]


async def test_job_that_is_not_held_causes_no_read() -> None:
    cluster = FakeCluster()
    messages = QueueMessages(cluster.queue_message)
    job = kueue_job()
    for second in range(0, 100, 10):
        await messages.look(World(job, after(second)))
    assert cluster.queue_reads == []


async def test_admission_ends_the_message() -> None:
    bench = await gated_bench()
    bench.cluster.queue_messages[GROUP] = "no room"
    await look_at(bench, 1, 6)
    for pod in bench.cluster.pods():
        bench.cluster.change_pod(pod["metadata"]["name"], conditions=[])
    await look_at(bench, 7, 60)
    assert "no room" not in summary(bench.status())[2]
