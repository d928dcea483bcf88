"""Cache: newer versions win, a relist removes deleted objects, and the uid identifies an object."""

from typing import Any

import pytest

from ddp_operator.cluster.base import Listing, Manifest, Snapshot
from ddp_operator.runtime.cache import Cache, job_key
from ddp_wire import contract
from tests.operator.support import active_job, job_manifest, pod_manifest

KEY = ("team-a", "digits")


def job(version: int, uid: str = "u1", name: str = "digits") -> Manifest:
    found = job_manifest(name)
    found["metadata"] |= {"resourceVersion": str(version), "uid": uid}
    return found


def pod(version: int, uid: str = "p1", index: int = 0) -> Manifest:
    found = pod_manifest(active_job(), index, version=version)
    found["metadata"]["uid"] = uid
    return found


def listing(version: int, *items: Manifest) -> Listing:
    return Listing(items, version)


def snapshot(version: int, jobs: Any = (), pods: Any = ()) -> Snapshot:
    return Snapshot(listing(version, *jobs), listing(version, *pods), listing(version))


def known(cache: Cache) -> list[tuple[str, str]]:
    """Return uid and version of the pods in the cache."""
    pods = cache.children("Pod", KEY)
    return [(p["metadata"]["uid"], p["metadata"]["resourceVersion"]) for p in pods]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ((5, "u1"), (6, "u1"), (6, "u1")),
        ((6, "u1"), (5, "u1"), (6, "u1")),
        ((9, "u1"), (10, "u1"), (10, "u1")),
        ((9, "u1"), (3, "u2"), (3, "u2")),
    ],
    ids=["newer", "older", "newer as a number but not as text", "new uid"],
)
def test_cache_keeps_the_right_version_of_an_object(
    first: tuple[int, str], second: tuple[int, str], kept: tuple[int, str]
) -> None:
    cache = Cache()
    assert cache.put_job(job(*first)) == KEY
    assert cache.put_job(job(*second)) == KEY
    found = cache.job(KEY)
    assert found is not None
    assert (int(found["metadata"]["resourceVersion"]), found["metadata"]["uid"]) == kept
    cache.put_child("Pod", pod(*first))
    cache.put_child("Pod", pod(*second))
    assert known(cache) == [(kept[1], str(kept[0]))]


def test_child_is_found_by_the_key_of_its_job() -> None:
    cache = Cache()
    assert cache.put_child("Pod", pod(1)) == KEY
    assert cache.put_child("Service", {**pod(2), "kind": "Service"}) == KEY
    assert len(cache.children("Pod", KEY)) == 1
    assert len(cache.children("Service", KEY)) == 1
    assert cache.children("Pod", ("team-b", "digits")) == []


def test_pod_without_a_job_label_is_ignored() -> None:
    stray = pod(1)
    del stray["metadata"]["labels"][contract.LABEL_JOB_NAME]
    cache = Cache()
    assert job_key(stray) is None
    assert cache.put_child("Pod", stray) is None
    assert cache.drop_child("Pod", stray) is None
    assert known(cache) == []


def test_deleted_object_is_dropped() -> None:
    cache = Cache()
    cache.put_job(job(1))
    cache.put_child("Pod", pod(1))
    assert cache.drop_job(job(2)) == KEY
    assert cache.drop_child("Pod", pod(2)) == KEY
    assert cache.job(KEY) is None
    assert known(cache) == []
    assert cache.keys() == []


def test_late_deletion_does_not_drop_a_newer_object() -> None:
    cache = Cache()
    cache.put_job(job(5, uid="u2"))
    cache.put_child("Pod", pod(5, uid="p2"))
    cache.drop_job(job(4, uid="u1"))
    cache.drop_child("Pod", pod(4, uid="p1"))
    assert cache.job(KEY) is not None
    assert known(cache) == [("p2", "5")]


def test_forgotten_job_is_dropped() -> None:
    cache = Cache()
    cache.put_job(job(1))
    cache.forget_job(KEY)
    cache.forget_job(KEY)
    assert cache.job(KEY) is None


def test_relist_adds_objects_that_the_watch_missed() -> None:
    cache = Cache()
    assert cache.replace(snapshot(9, [job(3)], [pod(4)])) == {KEY}
    assert cache.job(KEY) is not None
    assert known(cache) == [("p1", "4")]


def test_relist_removes_deleted_objects() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    assert cache.replace(snapshot(9)) == {KEY}
    assert cache.job(KEY) is None
    assert known(cache) == []


def test_relist_keeps_newer_objects_from_the_watch() -> None:
    cache = Cache()
    cache.put_job(job(12))
    cache.put_child("Pod", pod(11, uid="p1", index=0))
    cache.put_child("Pod", pod(3, uid="p2", index=1))
    cache.replace(snapshot(9, [job(5)], [pod(4, uid="p1", index=0)]))
    found = cache.job(KEY)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "12"
    assert known(cache) == [("p1", "11")]


def test_relist_returns_all_jobs_that_are_or_were_known() -> None:
    cache = Cache()
    cache.put_job(job(3, name="gone"))
    orphan = pod(4)
    orphan["metadata"]["labels"][contract.LABEL_JOB_NAME] = "orphaned"
    cache.put_child("Pod", orphan)
    found = cache.replace(snapshot(9, [job(5, name="new")]))
    assert found == {("team-a", "gone"), ("team-a", "orphaned"), ("team-a", "new")}


def test_deleted_job_is_returned_by_one_relist_only() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    cache.replace(snapshot(9))
    assert cache.replace(snapshot(10)) == set()
