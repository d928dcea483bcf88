"""Tests of the index of jobs by Kubernetes node, after random events of pods."""

from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import ClusterSnapshot, Listing, Manifest
from ddp_operator.runtime.cache import Cache

NODES = (None, "", "machine-0", "machine-1")
PODS = st.builds(
    lambda job, index, version, uid, node, phase, deleted: {
        "metadata": {
            "namespace": "team-a",
            "name": f"{job}-{index}",
            "uid": f"{job}-{index}-{uid}",
            "resourceVersion": str(version),
            "labels": {"ddp-trainer.dev/job-name": job},
            **({"deletionTimestamp": "2026-03-01T12:00:00Z"} if deleted else {}),
        },
        "spec": {} if node is None else {"nodeName": node},
        "status": {"phase": phase},
    },
    st.sampled_from(["a", "b"]),
    st.integers(0, 1),
    st.integers(1, 9),
    st.integers(0, 1),
    st.sampled_from(NODES),
    st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]),
    st.booleans(),
)
EVENTS = st.lists(st.tuples(st.sampled_from(["put", "drop", "list", "relist"]), PODS), max_size=20)


def snapshot(*pods: Manifest) -> ClusterSnapshot:
    found = {kind: Listing(pods if kind == "Pod" else (), 5) for kind in KINDS}
    return ClusterSnapshot(Listing((), 5), found)


@given(EVENTS)
def test_places_on_kubernetes_nodes_are_those_of_living_pods_in_the_cache(
    events: list[tuple[str, Manifest]],
) -> None:
    cache = Cache()
    for what, pod in events:
        if what == "put":
            cache.put_child("Pod", pod)
        elif what == "drop":
            cache.drop_child("Pod", pod)
        elif what == "relist":
            cache.replace(snapshot(pod))
        else:
            with cache.pending_request() as request:
                request.replace_kind("Pod", "team-a", Listing([pod], 5))
        expected: dict[str, set[tuple[str, str]]] = {}
        for key in (("team-a", "a"), ("team-a", "b")):
            for known in cache.children("Pod", key):
                living = known["status"]["phase"] in {"Pending", "Running"}
                place = known["spec"].get("nodeName")
                if living and place and "deletionTimestamp" not in known["metadata"]:
                    expected.setdefault(place, set()).add(key)
        assert {name: cache.places.jobs_on(name) for name in expected} == expected
        assert len(cache.places) == len(expected)
