"""Tests of pods that wait for a reason that only their Events contain."""

from typing import Any

import pytest

from ddp_operator.cluster.base import ClusterError
from ddp_operator.cluster.kube.documents import newest_warning
from tests.operator.runtime.test_controller import Bench
from tests.operator.support import after, summary

UNMOUNTED = 'FailedMount: MountVolume.SetUp failed for volume "data": secret "data" not found'
CREATING = [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]


async def creating() -> tuple[Bench, str]:
    """Return a job whose second pod has a Kubernetes node but does not start, and the pod's uid."""
    bench = Bench()
    await bench.reconcile_until_idle()
    bench.cluster.change_pod("digits-0", phase="Running", podIP="10.0.0.1")
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    pod = bench.cluster.change_pod(
        "digits-1", phase="Pending", conditions=scheduled, containerStatuses=CREATING
    )
    pod["spec"]["nodeName"] = "machine-1"
    return bench, bench.cluster._store_child("Pod", pod)["metadata"]["uid"]


async def seconds(bench: Bench, first: int, last: int, step: int = 1) -> None:
    for second in range(first, last, step):
        bench.now = after(second)
        await bench.reconcile()


async def test_newest_warning_about_a_waiting_pod_is_quoted() -> None:
    bench, uid = await creating()
    bench.cluster.warnings[uid] = UNMOUNTED
    await seconds(bench, 0, 10)
    assert bench.cluster.warning_reads == []
    await seconds(bench, 10, 25)
    assert summary(bench.status())[1:] == ("Pending", f"digits-1 waits: {UNMOUNTED}")
    del bench.cluster.warnings[uid]
    await seconds(bench, 25, 60)
    assert summary(bench.status())[2] == "digits-1 waits: ContainerCreating"


async def test_events_of_one_pod_are_read_with_growing_delays() -> None:
    bench, uid = await creating()
    bench.cluster.warnings[uid] = UNMOUNTED
    await seconds(bench, 0, 2400, 10)
    assert set(bench.cluster.warning_reads) == {uid}
    assert 8 <= len(bench.cluster.warning_reads) <= 14
    pod = bench.cluster.change_pod("digits-1", phase="Running", containerStatuses=[])
    assert pod["metadata"]["uid"] == uid
    before = len(bench.cluster.warning_reads)
    await seconds(bench, 2400, 3000, 100)
    assert len(bench.cluster.warning_reads) == before


async def test_events_of_pods_that_start_one_after_another_are_read_only_a_few_times() -> None:
    bench = Bench(nodes=30)
    await bench.reconcile_until_idle()
    for index in range(30):
        bench.now = after(10 + index)
        await bench.reconcile()
        bench.cluster.change_pod(f"digits-{index}", phase="Running", podIP=f"10.0.0.{index}")
    assert 2 <= len(bench.cluster.warning_reads) <= 4


async def test_pod_that_no_scheduler_knows_is_named() -> None:
    bench = Bench()
    await bench.reconcile_until_idle()
    for pod in bench.cluster.pods():
        bench.cluster._store_child("Pod", {**pod, "spec": {**pod["spec"], "nodeName": None}})
    await seconds(bench, 0, 25)
    assert "digits-0 waits: NotScheduled: no scheduler has" in summary(bench.status())[2]


async def test_refused_read_of_events_changes_nothing_else() -> None:
    bench, _ = await creating()
    bench.cluster.warnings_error = ClusterError("events is forbidden", status=403)
    await seconds(bench, 0, 320, 5)
    assert 1 <= len(bench.cluster.warning_reads) <= 2
    assert summary(bench.status())[2] == "digits-1 waits: ContainerCreating"


def event(kind: str, reason: str, **times: Any) -> dict[str, Any]:
    metadata = {"creationTimestamp": "2026-03-01T12:00:00Z"}
    return {"type": kind, "reason": reason, "message": "a\nb", "metadata": metadata, **times}


OLD = event("Warning", "Old")
SEEN = event("Warning", "Seen", lastTimestamp="2026-03-01T12:00:05Z")
SERIES = event("Warning", "Series", series={"lastObservedTime": "2026-03-01T12:00:07.000001Z"})
PULLING = event("Normal", "Pulling", eventTime="2026-03-01T12:00:06.000001Z", lastTimestamp=None)


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], None),
        ([OLD], "Old: a b"),
        ([SEEN, OLD], "Seen: a b"),
        ([SEEN, PULLING, OLD], None),
        ([SERIES, PULLING, SEEN], "Series: a b"),
    ],
    ids=["none", "one", "two", "got on", "series"],
)
def test_warning_is_shown_until_a_normal_event_follows(
    events: list[dict[str, Any]], text: str | None
) -> None:
    assert newest_warning(events) == text
