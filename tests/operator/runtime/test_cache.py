"""Cache: newer versions win, a relist removes deleted objects, and the uid identifies an object.

An answer of the API server wins over the cache, but not over watch events since its request.
"""

from typing import Any

import pytest

from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import ClusterSnapshot, Listing, Manifest
from ddp_operator.runtime.cache import Cache, job_key
from ddp_wire import contract
from tests.operator.support import UID, active_job, job_manifest, pod_manifest

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


def snapshot(version: int, jobs: Any = (), pods: Any = ()) -> ClusterSnapshot:
    children = {kind: listing(version, *(pods if kind == "Pod" else ())) for kind in KINDS}
    return ClusterSnapshot(listing(version, *jobs), children)


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
def test_cache_keeps_the_newer_version_of_an_object(
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
    with cache.pending_request() as relist:
        cache.put_job(job(12))
        cache.put_child("Pod", pod(11, uid="p1", index=0))
        cache.put_child("Pod", pod(3, uid="p2", index=1))
        relist.replace(snapshot(9, [job(5)], [pod(4, uid="p1", index=0)]))
    found = cache.job(KEY)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "12"
    assert known(cache) == [("p1", "11")]


def test_object_that_did_not_change_stays_the_same_in_memory() -> None:
    cache = Cache()
    first = snapshot(9, [job(5)], [pod(6), pod(7, "p2", index=1)])
    cache.replace(first)
    cache.replace(snapshot(12, [job(5)], [pod(6), pod(11, "p2", index=1)]))
    cache.put_job(job(5))
    cache.put_child("Pod", pod(6))
    assert cache.job(KEY) is first.jobs.items[0]
    assert cache.children("Pod", KEY)[0] is first.children["Pod"].items[0]
    assert known(cache) == [("p1", "6"), ("p2", "11")]


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


# --- Answers of the API server ----------------------------------------------------------------


def job_version(cache: Cache) -> tuple[str, str] | None:
    """Return uid and version of the job in the cache."""
    found = cache.job(KEY)
    return (found["metadata"]["uid"], found["metadata"]["resourceVersion"]) if found else None


def test_answer_with_an_older_version_replaces_the_cached_job() -> None:
    """A restored etcd counts versions from an older number."""
    cache = Cache()
    cache.put_job(job(90))
    with cache.pending_request() as get:
        get.put_job(job(40))
    assert job_version(cache) == ("u1", "40")
    cache.put_job(job(41))
    assert job_version(cache) == ("u1", "41")


def test_relist_with_older_versions_replaces_the_cache() -> None:
    cache = Cache()
    cache.put_job(job(90))
    cache.put_job(job(91, name="created-after-the-backup"))
    cache.put_child("Pod", pod(92, uid="p1", index=0))
    cache.put_child("Pod", pod(93, uid="p2", index=1))
    cache.replace(snapshot(45, [job(40)], [pod(41, uid="p1", index=0)]))
    assert cache.keys() == [KEY]
    assert job_version(cache) == ("u1", "40")
    assert known(cache) == [("p1", "41")]


@pytest.mark.parametrize(
    ("cached", "answered", "is_restored"),
    [
        (90, job(40), True),
        (90, job(90), False),
        (90, job(91), False),
        (90, job(40, uid="u2"), False),
        (None, job(40), False),
    ],
    ids=["older", "same", "newer", "older of another job", "not cached"],
)
def test_answer_with_an_older_version_shows_that_the_api_server_was_restored(
    cached: int | None, answered: Manifest, is_restored: bool
) -> None:
    cache = Cache()
    if cached is not None:
        cache.put_job(job(cached))
    with cache.pending_request() as get:
        get.put_job(answered)
    assert cache.restored.is_set() == is_restored


def test_relist_with_an_older_version_shows_that_the_api_server_was_restored() -> None:
    cache = Cache()
    cache.replace(snapshot(50))
    cache.replace(snapshot(50))
    assert not cache.restored.is_set()
    cache.replace(snapshot(40))
    assert cache.restored.is_set()


def test_answer_that_is_older_than_a_watch_event_since_its_request_is_ignored() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    with cache.pending_request() as request:
        cache.put_job(job(12))
        cache.put_child("Pod", pod(13))
        request.put_job(job(5))
        request.put_child("Pod", pod(6))
    assert job_version(cache) == ("u1", "12")
    assert known(cache) == [("p1", "13")]
    assert not cache.restored.is_set()


def test_relist_keeps_newer_answers_to_other_requests() -> None:
    """A write is answered before the watch delivers it."""
    cache = Cache()
    cache.put_job(job(3))
    with cache.pending_request() as relist:
        with cache.pending_request() as write:
            write.put_job(job(12))
        with cache.pending_request() as create:
            create.put_child("Pod", pod(13))
        relist.replace(snapshot(9, [job(3)]))
    assert job_version(cache) == ("u1", "12")
    assert known(cache) == [("p1", "13")]


def test_relist_does_not_bring_back_objects_deleted_since_its_request() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    with cache.pending_request() as relist:
        cache.drop_job(job(10))
        cache.drop_child("Pod", pod(11))
        relist.replace(snapshot(9, [job(3)], [pod(4)]))
    assert cache.job(KEY) is None
    assert known(cache) == []


def test_deleted_job_that_was_never_cached_is_not_brought_back() -> None:
    cache = Cache()
    with cache.pending_request() as relist:
        cache.drop_job(job(10))
        relist.replace(snapshot(9, [job(3)]))
    assert cache.job(KEY) is None


def test_late_response_to_a_write_does_not_bring_back_a_deleted_job() -> None:
    cache = Cache()
    cache.put_job(job(3))
    with cache.pending_request() as write:
        cache.drop_job(job(6))
        write.put_job(job(5))
    assert cache.job(KEY) is None


def test_relist_shows_the_successor_of_a_job_deleted_since_its_request() -> None:
    cache = Cache()
    cache.put_job(job(3))
    with cache.pending_request() as relist:
        cache.drop_job(job(6))
        relist.replace(snapshot(9, [job(8, uid="u2")]))
    assert job_version(cache) == ("u2", "8")


def test_absent_job_is_kept_when_a_watch_saw_it_since_the_request() -> None:
    cache = Cache()
    with cache.pending_request() as get:
        cache.put_job(job(5))
        get.forget_job(KEY)
    assert job_version(cache) == ("u1", "5")


def test_object_deleted_before_a_request_is_cached_if_the_answer_has_it() -> None:
    """A restored etcd has objects again that were deleted after the backup."""
    cache = Cache()
    cache.put_job(job(3))
    cache.drop_job(job(6))
    cache.replace(snapshot(4, [job(3)]))
    assert job_version(cache) == ("u1", "3")


def test_snapshots_of_several_namespaces_have_the_oldest_version() -> None:
    """A job that was created between two lists is newer than the merged list, and stays."""
    merged = ClusterSnapshot.merge(
        [snapshot(5, [job(3)], [pod(4)]), snapshot(9, [job(8, name="b")])]
    )
    assert merged == snapshot(5, [job(3), job(8, name="b")], [pod(4)])


LABELS = {contract.LABEL_JOB_UID: UID}


def test_list_of_a_job_removes_only_its_own_deleted_pods() -> None:
    cache = Cache()
    earlier, other = pod(4, uid="p3", index=2), pod(4, uid="p4")
    earlier["metadata"]["labels"] |= {contract.LABEL_JOB_UID: "an earlier job"}
    other["metadata"]["labels"] |= {contract.LABEL_JOB_NAME: "other"}
    for one in (pod(4), pod(4, uid="p2", index=1), earlier, other):
        cache.put_child("Pod", one)
    with cache.pending_request() as request:
        request.replace_pods(KEY, LABELS, listing(9, pod(7, uid="p2", index=1)))
    assert sorted(known(cache)) == [("p2", "7"), ("p3", "4")]
    assert len(cache.children("Pod", ("team-a", "other"))) == 1


def test_list_of_a_job_keeps_pods_created_or_changed_since_its_request() -> None:
    cache = Cache()
    cache.put_child("Pod", pod(4))
    with cache.pending_request() as request:
        cache.put_child("Pod", pod(10))
        with cache.pending_request() as create:
            create.put_child("Pod", pod(11, uid="p2", index=1))
        request.replace_pods(KEY, LABELS, listing(9))
    assert sorted(known(cache)) == [("p1", "10"), ("p2", "11")]


def test_older_answer_does_not_bring_back_a_pod_that_a_list_missed() -> None:
    cache = Cache()
    cache.put_child("Pod", pod(4))
    with cache.pending_request() as relist, cache.pending_request() as patch:
        with cache.pending_request() as request:
            request.replace_pods(KEY, LABELS, listing(9))
        patch.put_child("Pod", pod(6))
        relist.replace(snapshot(5, pods=[pod(4)]))
    assert known(cache) == []


def test_pod_that_a_list_contains_takes_later_answers_to_earlier_requests() -> None:
    cache = Cache()
    cache.put_child("Pod", pod(4))
    with cache.pending_request() as patch:
        with cache.pending_request() as request:
            cache.put_child("Pod", pod(6))
            request.replace_pods(KEY, LABELS, listing(9, pod(6)))
        patch.put_child("Pod", pod(10))
    assert known(cache) == [("p1", "10")]
