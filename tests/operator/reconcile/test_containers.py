"""Tests of how sidecars and init containers affect decisions."""

from typing import Any

import pytest

from ddp_operator.api.status import Cause, ConditionType
from ddp_operator.reconcile.pod_view import PodView
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    plan_for,
    pod,
    pod_manifest,
    summary,
    view_of,
    with_status,
)

TRAINING = {"name": "worker", "ready": True, "state": {"running": {}}}
NOT_READY = {
    "type": "Ready",
    "status": "False",
    "reason": "ContainersNotReady",
    "message": "containers with unready status: [sync]",
}
GATE = {
    "type": "Ready",
    "status": "False",
    "reason": "ReadinessGatesNotReady",
    "message": 'the status of pod readiness gate "lb" is not "True", but False',
}
LOST_NODE = {"type": "Ready", "status": "False"}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
NO_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
JOB: dict[str, Any] = {"startupDeadlineSeconds": 60}


def sync(state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    return {"name": "sync", "ready": ready, "state": state}


def view(
    index: int, *, init: list[dict[str, Any]] | None = None, always: bool = False, **status: Any
) -> PodView:
    """Return the view of a pod with these statuses. `always` makes its init container a sidecar."""
    given = status | ({"initContainerStatuses": init} if init else {})
    manifest = pod_manifest(active_job(), index, **given)
    if always:
        manifest["spec"]["initContainers"] = [{"name": "sync", "restartPolicy": "Always"}]
    return view_of(manifest)


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"containerStatuses": [TRAINING, sync({"running": {}})]}, "container sync is not ready"),
        (
            {"containerStatuses": [TRAINING, sync(KILLED)]},
            "container sync ended with exit code 137 (OOMKilled)",
        ),
        (
            {"containerStatuses": [TRAINING, sync(NO_IMAGE)], "phase": "Pending"},
            "container sync waits: ImagePullBackOff: no such image",
        ),
        ({"containerStatuses": [TRAINING, sync({"terminated": {"exitCode": 0}})]}, None),
        ({"containerStatuses": [TRAINING], "conditions": [GATE]}, GATE["message"]),
        (
            {"containerStatuses": [TRAINING], "init": [sync({"running": {}})], "always": True},
            "container sync is not ready",
        ),
    ],
    ids=["not ready", "out of memory", "no image", "done", "readiness gate", "native sidecar"],
)
def test_state_of_a_container_beside_the_worker_changes_no_decision(
    status: dict[str, Any], trouble: str | None
) -> None:
    job = active_job(formed=False, **JOB)
    pods = [view(i, **({"conditions": [NOT_READY]} | status)) for i in range(2)]
    assert [p.beside for p in pods] == [trouble] * 2
    statuses = {i: agent_status(i) for i in range(2)}
    seen = plan_for(job, pods, statuses=statuses, now=after(30)).status
    plan = plan_for(with_status(job, **dict(seen)), pods, statuses=statuses, now=after(61))
    assert plan.status.ready == "2/2"
    assert plan.status.is_true(ConditionType.RENDEZVOUSED)
    _, reason, message = summary(plan.status)
    assert reason == "Running"
    assert ("; digits-0: " in message) is (trouble is not None)
    assert trouble is None or trouble in message


@pytest.mark.parametrize(
    ("worker", "condition"),
    [
        (TRAINING, LOST_NODE),
        ({**TRAINING, "ready": False}, NOT_READY),
        ({"name": "worker", "state": {"running": {}}}, NOT_READY),
    ],
    ids=["lost node", "worker not ready", "nothing known"],
)
def test_worker_that_is_not_ready_does_not_count_as_training(
    worker: dict[str, Any], condition: dict[str, Any]
) -> None:
    found = view(0, containerStatuses=[worker], conditions=[condition])
    assert not found.ready
    assert found.beside is None or worker["ready"]


FETCH_FAILED = {"exitCode": 2, "reason": "Error", "message": "connecting\nno such bucket: data\n"}


@pytest.mark.parametrize(
    ("end", "reason", "message"),
    [
        (
            FETCH_FAILED,
            "InitContainerFailed",
            "init container fetch of digits-1 failed with exit code 2: no such bucket: data",
        ),
        (
            {"exitCode": 137, "reason": "OOMKilled"},
            "OOMKilled",
            "init container fetch of digits-1 ran out of memory",
        ),
    ],
    ids=["error", "out of memory"],
)
def test_failed_init_container_is_an_application_failure_with_its_last_line(
    end: dict[str, Any], reason: str, message: str
) -> None:
    job = active_job(formed=False)
    failed = {"name": "fetch", "state": {"terminated": end}}
    waiting = {"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    dead = view(1, phase="Failed", init=[failed], containerStatuses=[waiting])
    failure = plan_for(job, [pod(job, 0, ready=False), dead]).status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause, failure.message) == (reason, Cause.APPLICATION, message)
    assert failure.exit_code == end["exitCode"]


def test_eviction_explains_the_end_of_an_init_container() -> None:
    job = active_job(formed=False)
    failed = {"name": "fetch", "state": {"terminated": FETCH_FAILED}}
    sentence = "The node was low on resource: ephemeral-storage."
    dead = view(1, phase="Failed", init=[failed], reason="Evicted", message=sentence)
    failure = plan_for(job, [pod(job, 0, ready=False), dead]).status.last_failure
    assert failure is not None
    assert failure.cause is Cause.INFRASTRUCTURE
    assert failure.message == f"digits-1 failed: Evicted: {sentence}"


@pytest.mark.parametrize(
    ("state", "waiting"),
    [
        ({"running": {}}, "PodInitializing: init container fetch is running"),
        (NO_IMAGE, "init container fetch: ImagePullBackOff: no such image"),
    ],
    ids=["runs", "no image"],
)
def test_status_names_the_init_container_for_which_the_worker_waits(
    state: dict[str, Any], waiting: str
) -> None:
    job = active_job(formed=False)
    worker = {"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    done = {"name": "first", "state": {"terminated": {"exitCode": 0}}}
    found = view(
        1,
        phase="Pending",
        init=[done, {"name": "fetch", "state": state}],
        containerStatuses=[worker],
    )
    plan = plan_for(job, [pod(job, 0, ready=False), found])
    assert summary(plan.status)[1:] == ("Pending", f"digits-1 waits: {waiting}")
