"""Pods of deleted jobs that Kueue keeps."""

from typing import Any

import pytest

from ddp_operator.cluster.base import Manifest
from ddp_operator.runtime.orphans import Orphans
from tests.operator.fake_cluster import FakeCluster
from tests.operator.support import UID, job_manifest

KEY = ("team-a", "digits")
MANAGED = "kueue.x-k8s.io/managed"


def kept_pod(index: int = 0, *, uid: str = UID, group: str = "g", **metadata: Any) -> Manifest:
    """Return a deleted pod of a job that Kueue keeps."""
    given = {
        "name": f"digits-{index}",
        "labels": {"kueue.x-k8s.io/pod-group-name": group},
        "annotations": {"ddp-trainer.dev/gang-group": group},
        "ownerReferences": [{"uid": uid}],
        "finalizers": [MANAGED],
        "deletionTimestamp": "2026-03-01T12:00:00Z",
    }
    return {"metadata": given | metadata}


async def released(
    *pods: Manifest, exists: bool = False, cached: bool | None = None, times: int = 1
) -> list[str]:
    """Return the Workloads that are deleted when the job exists, or is in the cache."""
    cluster = FakeCluster()
    job = cluster.apply(job_manifest()) if exists else None
    orphans = Orphans(cluster)
    for _ in range(times):
        await orphans.release(KEY, job if cached in (None, True) else None, pods)
    return cluster.deleted_workloads


async def test_workload_of_a_deleted_job_is_deleted_once() -> None:
    assert await released(kept_pod(0), kept_pod(1), times=3) == ["g"]


async def test_job_that_the_cache_does_not_know_keeps_its_workload() -> None:
    assert await released(kept_pod(), exists=True, cached=False) == []
    assert await released(kept_pod(), exists=True) == []


async def test_workload_of_an_earlier_job_with_the_same_name_is_deleted() -> None:
    pods = kept_pod(uid="earlier", group="old"), kept_pod(1)
    assert await released(*pods, exists=True) == ["old"]


@pytest.mark.parametrize(
    "changed",
    [{"deletionTimestamp": None}, {"finalizers": []}, {"labels": {}}, {"annotations": {}}],
    ids=str,
)
async def test_other_pods_need_no_release(changed: dict[str, Any]) -> None:
    assert await released(kept_pod(**changed)) == []


async def test_pod_that_is_not_deleted_protects_its_group() -> None:
    """The garbage collector has not come to it, so its owner may still exist."""
    assert await released(kept_pod(0), kept_pod(1, deletionTimestamp=None)) == []
