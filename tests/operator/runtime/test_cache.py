"""The cache: newer wins, a relist purges, and an object of another uid is another object."""

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
    """Uid and version of the pods that the cache holds."""
    pods = cache.children("Pod", KEY)
    return [(p["metadata"]["uid"], p["metadata"]["resourceVersion"]) for p in pods]


@pytest.mark.parametrize(
    ("first", "then", "held"),
    [
        ((5, "u1"), (6, "u1"), (6, "u1")),
        ((6, "u1"), (5, "u1"), (6, "u1")),
        ((9, "u1"), (10, "u1"), (10, "u1")),
        ((9, "u1"), (3, "u2"), (3, "u2")),
    ],
    ids=["newer", "older", "newer by number and not by text", "another object of the name"],
)
def test_which_state_of_an_object_is_held(
    first: tuple[int, str], then: tuple[int, str], held: tuple[int, str]
) -> None:
    cache = Cache()
    assert cache.put_job(job(*first)) == KEY
    assert cache.put_job(job(*then)) == KEY
    found = cache.job(KEY)
    assert found is not None
    assert (int(found["metadata"]["resourceVersion"]), found["metadata"]["uid"]) == held
    cache.put_child("Pod", pod(*first))
    cache.put_child("Pod", pod(*then))
    assert known(cache) == [(held[1], str(held[0]))]


def test_a_child_is_found_by_the_key_of_its_job() -> None:
    cache = Cache()
    assert cache.put_child("Pod", pod(1)) == KEY
    assert cache.put_child("Service", {**pod(2), "kind": "Service"}) == KEY
    assert len(cache.children("Pod", KEY)) == 1
    assert len(cache.children("Service", KEY)) == 1
    assert cache.children("Pod", ("team-b", "digits")) == []


def test_a_pod_that_is_nobodys_is_ignored() -> None:
    stray = pod(1)
    del stray["metadata"]["labels"][contract.LABEL_JOB_NAME]
    cache = Cache()
    assert job_key(stray) is None
    assert cache.put_child("Pod", stray) is None
    assert cache.drop_child("Pod", stray) is None
    assert known(cache) == []


def test_a_deleted_object_is_forgotten() -> None:
    cache = Cache()
    cache.put_job(job(1))
    cache.put_child("Pod", pod(1))
    assert cache.drop_job(job(2)) == KEY
    assert cache.drop_child("Pod", pod(2)) == KEY
    assert cache.job(KEY) is None
    assert known(cache) == []
    assert cache.keys() == []


def test_the_late_news_that_an_object_was_deleted_do_not_hide_its_successor() -> None:
    cache = Cache()
    cache.put_job(job(5, uid="u2"))
    cache.put_child("Pod", pod(5, uid="p2"))
    cache.drop_job(job(4, uid="u1"))
    cache.drop_child("Pod", pod(4, uid="p1"))
    assert cache.job(KEY) is not None
    assert known(cache) == [("p2", "5")]


def test_a_job_that_was_found_to_be_gone_is_forgotten() -> None:
    cache = Cache()
    cache.put_job(job(1))
    cache.forget_job(KEY)
    cache.forget_job(KEY)
    assert cache.job(KEY) is None


def test_a_relist_brings_in_what_the_watch_has_missed() -> None:
    cache = Cache()
    assert cache.replace(snapshot(9, [job(3)], [pod(4)])) == {KEY}
    assert cache.job(KEY) is not None
    assert known(cache) == [("p1", "4")]


def test_a_relist_purges_what_is_gone() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    assert cache.replace(snapshot(9)) == {KEY}
    assert cache.job(KEY) is None
    assert known(cache) == []


def test_a_relist_keeps_what_the_watch_has_brought_since() -> None:
    cache = Cache()
    cache.put_job(job(12))
    cache.put_child("Pod", pod(11, uid="p1", index=0))
    cache.put_child("Pod", pod(3, uid="p2", index=1))
    cache.replace(snapshot(9, [job(5)], [pod(4, uid="p1", index=0)]))
    found = cache.job(KEY)
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "12"
    assert known(cache) == [("p1", "11")]


def test_a_relist_names_every_job_that_is_or_was_known_so_that_all_are_looked_at() -> None:
    cache = Cache()
    cache.put_job(job(3, name="gone"))
    orphan = pod(4)
    orphan["metadata"]["labels"][contract.LABEL_JOB_NAME] = "orphaned"
    cache.put_child("Pod", orphan)
    found = cache.replace(snapshot(9, [job(5, name="new")]))
    assert found == {("team-a", "gone"), ("team-a", "orphaned"), ("team-a", "new")}


def test_what_is_long_gone_is_not_looked_at_for_ever() -> None:
    cache = Cache()
    cache.put_job(job(3))
    cache.put_child("Pod", pod(4))
    cache.replace(snapshot(9))
    assert cache.replace(snapshot(10)) == set()
