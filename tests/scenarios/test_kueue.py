"""The stand-in for Kueue plays Kueue's rules, so that runs under it can fail."""

from typing import Any

from tests.scenarios.kueue import GATE, Kueue, Move, Release, Stop, Ungate

Manifest = dict[str, Any]


def member(name: str, *, age: int = 0, gated: bool = True, **changes: Any) -> Manifest:
    """Return a pod of a group of two. A pod that is not gated has a Kubernetes node."""
    metadata = {
        "name": name,
        "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/pod-group-name": "g"},
        "annotations": {
            "kueue.x-k8s.io/pod-group-total-count": changes.pop("size", "2"),
            "kueue.x-k8s.io/role-hash": changes.pop("role", "workers"),
            **changes.pop("annotations", {}),
        },
        "finalizers": ["kueue.x-k8s.io/managed"],
        "resourceVersion": str(100 - age),
        **changes.pop("metadata", {}),
    }
    spec = {"schedulingGates": [GATE]} if gated else {"nodeName": "n"}
    phase = changes.pop("phase", "Pending" if gated else "Running")
    assert not changes
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def running(name: str, **changes: Any) -> Manifest:
    return member(name, gated=False, **changes)


def names(moves: list[Move], kind: type[Move]) -> list[str]:
    return [move.pod["metadata"]["name"] for move in moves if isinstance(move, kind)]


def admitted() -> Kueue:
    """Return a queue that has admitted the group."""
    kueue = Kueue(quota=2)
    assert names(kueue.step([member("a"), member("b")]), Ungate) == ["a", "b"]
    return kueue


def test_group_is_admitted_as_a_whole_when_there_is_quota() -> None:
    kueue = Kueue(quota=1)
    assert kueue.step([member("a")]) == []
    assert kueue.step([member("a"), member("b")]) == []
    kueue.quota = 2
    assert names(kueue.step([member("a"), member("b")]), Ungate) == ["a", "b"]


def test_excess_pods_are_deleted_gated_and_youngest_first() -> None:
    kueue = admitted()
    pods = [running("a"), running("b", age=2), running("c", age=1)]
    assert names(kueue.step(pods), Stop) == ["a"]
    pods = [running("a"), running("b", age=2), member("c", age=9)]
    assert names(kueue.step(pods), Stop) == ["c"]
    assert len(kueue.faults) == 2


def test_failed_pod_is_kept_until_its_successor_exists() -> None:
    kueue = admitted()
    failed = running("a", phase="Failed")
    assert kueue.step([failed, running("b")]) == []
    moves = kueue.step([failed, running("b"), member("c")])
    assert (names(moves, Release), names(moves, Ungate)) == (["a"], ["c"])
    assert kueue.faults == []


def test_pod_on_a_dead_node_counts_until_its_phase_shows_the_end() -> None:
    kueue = admitted()
    leaving = running("a", metadata={"deletionTimestamp": "now"})
    assert names(kueue.step([leaving, running("b"), member("c")]), Stop) == ["c"]


def test_other_role_or_size_breaks_the_group() -> None:
    kueue = admitted()
    moves = kueue.step([running("b"), member("c", role="other")])
    assert names(moves, Stop) == ["b", "c"]
    assert kueue.workloads == {}
    kueue = admitted()
    assert kueue.step([running("b"), member("c", size="3")]) == []
    assert len(kueue.faults) == 1


def test_eviction_stops_the_running_pods_and_new_ones_wait_for_quota() -> None:
    kueue = admitted()
    pods = [running("a"), running("b")]
    assert names(kueue.evict("g", pods, "Preempted"), Stop) == ["a", "b"]
    kueue.quota = 1
    ended = [running(n, phase="Failed", metadata={"deletionTimestamp": "now"}) for n in "ab"]
    moves = kueue.step([*ended, member("c"), member("d")])
    assert (names(moves, Release), names(moves, Ungate)) == (["a", "b"], [])
    kueue.quota = 2
    assert names(kueue.step([member("c"), member("d")]), Ungate) == ["c", "d"]


def test_pods_that_succeeded_free_their_quota_and_end_the_group() -> None:
    kueue = admitted()
    kueue.step([running("a", phase="Succeeded"), running("b")])
    assert kueue.workloads["g"].quota == 1
    done = [running(name, phase="Succeeded") for name in "ab"]
    assert names(kueue.step(done), Release) == ["a", "b"]
    assert kueue.workloads["g"].quota == 0


def test_marked_group_is_over_when_all_its_pods_have_ended() -> None:
    kueue = admitted()
    mark = {"annotations": {"kueue.x-k8s.io/retriable-in-group": "false"}}
    assert kueue.step([running("a", phase="Failed", **mark), running("b")]) == []
    ended = [running("a", phase="Failed", **mark), running("b", phase="Failed")]
    assert names(kueue.step(ended), Release) == ["a", "b"]


def test_pods_deleted_behind_their_gate_are_kept_until_the_workload_is_deleted() -> None:
    kueue = Kueue(quota=0)
    kueue.step([member("a"), member("b")])
    mark = {"annotations": {"kueue.x-k8s.io/retriable-in-group": "false"}}
    deleted = [member(name, metadata={"deletionTimestamp": "now"}, **mark) for name in "ab"]
    assert kueue.step(deleted) == []
    assert names(kueue.delete("g", deleted), Release) == ["a", "b"]
