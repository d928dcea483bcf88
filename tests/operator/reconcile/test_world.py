"""The view of a pod manifest from the API server, and the agent report that belongs to it."""

from typing import Any

import pytest

from ddp_operator.reconcile.pod_view import PodView, parse_time
from ddp_wire import contract
from tests.operator.support import NOW, active_job, failed_status, pod_manifest, view_of, world


def view(**status: Any) -> PodView:
    return view_of(pod_manifest(active_job(), 1, **status))


def worker(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": contract.WORKER_CONTAINER, "state": state}]}


def test_pod_view_has_the_fields_of_a_running_pod() -> None:
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


def test_pod_without_a_status_is_pending() -> None:
    bare = {"metadata": {"name": "a", "uid": "u"}}
    found = view_of(bare)
    assert (found.phase, found.index, found.ready, found.node) == ("Pending", -1, False, None)


def test_invalid_index_label_is_ignored() -> None:
    manifest = pod_manifest(active_job(), 1)
    manifest["metadata"]["labels"][contract.LABEL_NODE_INDEX] = "first"
    assert view_of(manifest).index == -1


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_pod_is_ready_only_when_the_ready_condition_is_true(status: str) -> None:
    assert not view(conditions=[{"type": "Ready", "status": status}]).ready


def test_pod_with_a_deletion_timestamp_is_being_deleted() -> None:
    manifest = pod_manifest(active_job())
    manifest["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert view_of(manifest).deleting
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
    ids=["unscheduled", "image missing", "creating", "running"],
)
def test_pod_view_has_the_reason_why_a_pod_waits(
    status: dict[str, Any], waiting: str | None
) -> None:
    assert view(phase="Pending", **status).waiting == waiting


def test_pod_view_has_the_end_of_a_container() -> None:
    final = failed_status(1, message="E: x")
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


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, ""),
        (
            "Traceback\n  File\npython3: No module named ddp_agent\n\n",
            "python3: No module named ddp_agent",
        ),
        ("a" * 200 + "b" * 300, "b" * 300),
        (failed_status(1, message="E: x").to_json(), ""),
    ],
    ids=["none", "log", "long line", "report"],
)
def test_pod_view_has_the_error_text_of_a_container_without_a_report(
    message: str | None, words: str
) -> None:
    ending = {"exitCode": 1, "message": message}
    found = view(phase="Failed", **worker(terminated=ending)).termination
    assert found is not None
    assert found.words == words


@pytest.mark.parametrize("message", [None, "", "Killed", "{", '{"attempt": "x"}', "[]"])
def test_container_killed_before_its_agent_reported_has_no_final_report(
    message: str | None,
) -> None:
    ending = {"exitCode": 137} | ({} if message is None else {"message": message})
    found = view(phase="Failed", **worker(terminated=ending)).termination
    assert found is not None
    assert found.final is None
    assert found.exit_code == 137


def test_pod_view_ignores_the_state_of_a_sidecar() -> None:
    sidecar = {"name": "sync", "state": {"terminated": {"exitCode": 3}}}
    assert view(containerStatuses=[sidecar]).termination is None


def test_pod_that_failed_as_a_whole_has_a_reason() -> None:
    assert view(phase="Failed", reason="Evicted").reason == "Evicted"


@pytest.mark.parametrize(
    ("condition", "disruption"),
    [
        ({"status": "True", "reason": "EvictionByEvictionAPI"}, "EvictionByEvictionAPI"),
        ({"status": "True"}, "Unknown"),
        ({"status": "False", "reason": "EvictionByEvictionAPI"}, None),
    ],
    ids=["disrupted", "disrupted without a reason", "no longer disrupted"],
)
def test_disruption_is_the_reason_of_disruption_target(
    condition: dict[str, str], disruption: str | None
) -> None:
    assert view(conditions=[{"type": "DisruptionTarget", **condition}]).disruption == disruption
    assert view().disruption is None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "Succeeded", "Failed"])
def test_pod_is_terminal_when_its_container_never_runs_again(phase: str) -> None:
    assert view(phase=phase).terminal is (phase in {"Succeeded", "Failed"})


def test_termination_message_takes_precedence_over_an_older_report() -> None:
    job = active_job()
    final = failed_status(1)
    ending = {"exitCode": 1, "message": final.to_json()}
    dead = view(phase="Failed", **worker(terminated=ending))
    seen = world(job, [dead], statuses={1: failed_status(1, message="older")})
    assert seen.agent_status(dead) == final
    assert seen.pod(1) is dead
    assert seen.pod(0) is None


def test_parsed_times_have_a_time_zone() -> None:
    assert parse_time("2026-03-01T12:00:00Z") == NOW
    assert parse_time(None) is None


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (137, "Failed")])
def test_pod_has_ended_as_soon_as_its_worker_container_has(code: int, phase: str) -> None:
    worker = {"name": "worker", "state": {"terminated": {"exitCode": code}}}
    sidecar = {"name": "sync", "state": {"running": {}}}
    found = view(phase="Running", containerStatuses=[sidecar, worker])
    assert found.phase == phase
    assert found.terminal
