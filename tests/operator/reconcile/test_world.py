"""From a pod as the API server gives it to what matters of it."""

from typing import Any

import pytest

from ddp_operator.reconcile.world import PodView, parse_time, view_pod
from ddp_wire import contract
from tests.operator.support import NOW, active_job, failed_word, pod_manifest, world


def view(**status: Any) -> PodView:
    return view_pod(pod_manifest(active_job(), 1, **status))


def worker(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": contract.WORKER_CONTAINER, "state": state}]}


def test_a_running_pod() -> None:
    job = active_job()
    found = view(conditions=[{"type": "Ready", "status": "True"}], **worker(running={}))
    assert found == PodView(
        name="digits-1",
        uid="uid-digits-1",
        index=1,
        phase="Running",
        ready=True,
        attempt="1",
        spec_hash=job.spec_hash,
        node="machine-1",
        ip="10.0.0.2",
    )


def test_a_pod_that_nobody_has_looked_at_yet() -> None:
    bare = {"metadata": {"name": "a", "uid": "u"}}
    found = view_pod(bare)
    assert (found.phase, found.index, found.ready, found.node) == ("Pending", -1, False, None)


def test_an_index_that_somebody_has_tampered_with_is_no_index() -> None:
    manifest = pod_manifest(active_job(), 1)
    manifest["metadata"]["labels"][contract.LABEL_NODE_INDEX] = "first"
    assert view_pod(manifest).index == -1


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_pod_is_ready_only_when_the_kubelet_says_true(status: str) -> None:
    assert not view(conditions=[{"type": "Ready", "status": status}]).ready


def test_a_pod_that_is_being_deleted() -> None:
    manifest = pod_manifest(active_job())
    manifest["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert view_pod(manifest).deleting
    assert not view().deleting


@pytest.mark.parametrize(
    ("status", "waiting"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ]
            },
            "Unschedulable: 0/3 nodes are available",
        ),
        (
            worker(waiting={"reason": "ErrImagePull", "message": "no such image"}),
            "ErrImagePull: no such image",
        ),
        (worker(waiting={"reason": "ContainerCreating"}), "ContainerCreating"),
        (worker(running={}), None),
    ],
    ids=["unscheduled", "no image", "creating", "running"],
)
def test_why_a_pod_waits(status: dict[str, Any], waiting: str | None) -> None:
    assert view(phase="Pending", **status).waiting == waiting


def test_how_a_container_ended() -> None:
    final = failed_word(1, message="E: x")
    ending = {
        "exitCode": 137,
        "reason": "OOMKilled",
        "finishedAt": "2026-03-01T12:00:00Z",
        "message": final.to_json(),
    }
    found = view(phase="Failed", **worker(terminated=ending))
    assert found.terminal
    assert found.termination is not None
    assert (found.termination.exit_code, found.termination.reason) == (137, "OOMKilled")
    assert found.termination.at == NOW
    assert found.termination.final == final


@pytest.mark.parametrize("message", [None, "", "Killed", "{", '{"attempt": "x"}', "[]"])
def test_a_container_that_was_killed_before_its_agent_could_write(message: str | None) -> None:
    ending = {"exitCode": 137} | ({} if message is None else {"message": message})
    found = view(phase="Failed", **worker(terminated=ending)).termination
    assert found is not None
    assert found.final is None
    assert found.exit_code == 137


def test_the_state_of_a_sidecar_is_not_the_workers() -> None:
    sidecar = {"name": "sync", "state": {"terminated": {"exitCode": 3}}}
    assert view(containerStatuses=[sidecar]).termination is None


def test_a_pod_that_failed_as_a_whole_tells_its_reason() -> None:
    assert view(phase="Failed", reason="Evicted").reason == "Evicted"


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ({"status": "True", "reason": "EvictionByEvictionAPI"}, "EvictionByEvictionAPI"),
        ({"status": "True"}, "Unknown"),
        ({"status": "False", "reason": "EvictionByEvictionAPI"}, None),
    ],
    ids=["told to go", "without a reason", "not any more"],
)
def test_why_kubernetes_told_a_pod_to_go(condition: dict[str, str], told: str | None) -> None:
    assert view(conditions=[{"type": "DisruptionTarget", **condition}]).disruption == told
    assert view().disruption is None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "Succeeded", "Failed"])
def test_a_pod_is_terminal_when_its_container_never_runs_again(phase: str) -> None:
    assert view(phase=phase).terminal is (phase in {"Succeeded", "Failed"})


def test_the_last_word_of_a_container_counts_more_than_what_its_agent_said_before() -> None:
    job = active_job()
    final = failed_word(1)
    ending = {"exitCode": 1, "message": final.to_json()}
    dead = view(phase="Failed", **worker(terminated=ending))
    seen = world(job, [dead], words={1: failed_word(1, message="older")})
    assert seen.report(dead) == final
    assert seen.pod(1) is dead
    assert seen.pod(0) is None


def test_times_of_the_api_server_are_aware() -> None:
    assert parse_time("2026-03-01T12:00:00Z") == NOW
    assert parse_time(None) is None


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (137, "Failed")])
def test_a_pod_has_ended_when_its_worker_has_though_the_kubelet_says_so_later(
    code: int, phase: str
) -> None:
    worker = {"name": "worker", "state": {"terminated": {"exitCode": code}}}
    sidecar = {"name": "sync", "state": {"running": {}}}
    found = view(phase="Running", containerStatuses=[sidecar, worker])
    assert found.phase == phase
    assert found.terminal
