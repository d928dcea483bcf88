"""Tests of the end of pods: pods that succeeded, that never started, or that have sidecars."""

from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.limits import ENDING_WRITES_SECONDS
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeletePod, EndPod, SetAttempt
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.status_throttle import seconds_until_write
from tests.operator.support import (
    DEFAULTS,
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    finished_job,
    only,
    plan_for,
    pod,
    pod_manifest,
    summary,
    view_of,
    with_status,
    world,
)

COMPLETE, FAILED, STALLED = ConditionType.COMPLETE, ConditionType.FAILED, ConditionType.STALLED


def succeeded(job: DDPJob, index: int) -> PodView:
    final = agent_status(index, phase="Succeeded")
    return pod(job, index, phase="Succeeded", ready=False, termination=ended(0, final=final))


def test_pod_that_succeeded_may_be_deleted_before_the_end_of_the_attempt() -> None:
    """Kubernetes may delete a succeeded pod while rank 0 still exports the model."""
    job = active_job(nodes=3)
    first = plan_for(job, [pod(job, 0), succeeded(job, 1), succeeded(job, 2)])
    assert first.status.succeeded_nodes == "1-2"
    job = with_status(job, **dict(first.status))
    second = plan_for(job, [pod(job, 0), succeeded(job, 2)])
    assert (second.status.attempt, second.actions) == (1, ())
    last = plan_for(job, [succeeded(job, 0)])
    assert summary(last.status)[:2] == ("True", "Completed")


def test_next_attempt_forgets_which_nodes_succeeded() -> None:
    job = active_job(status={"succeeded_nodes": "1"})
    dead = pod(job, 0, phase="Failed", ready=False, termination=ended(7))
    plan = plan_for(job, [dead])
    assert (plan.status.attempt, plan.status.succeeded_nodes) == (2, None)
    assert len(only(plan.actions, CreatePod)) == 2


def test_nodes_that_succeed_one_by_one_cost_few_status_writes() -> None:
    job = active_job(nodes=3)
    seen = world(job, [pod(job, 0), succeeded(job, 1), pod(job, 2)])
    job = with_status(job, **dict(decide(seen, DEFAULTS).status))
    more = world(job, [pod(job, 0), succeeded(job, 1), succeeded(job, 2)])
    plan = decide(more, DEFAULTS)
    assert seconds_until_write(more, plan, after(-1)) == ENDING_WRITES_SECONDS - 1
    assert seconds_until_write(more, plan, after(-5)) == 0.0


@pytest.mark.parametrize("ended_well", [True, False])
def test_pods_of_a_finished_job_that_never_started_are_deleted(ended_well: bool) -> None:
    """A pod without a node makes the autoscaler buy one; a bound pod holds its GPUs."""
    job = finished_job(succeeded=ended_well)
    waiting = pod(job, 1, phase="Pending", ready=False, waiting="ImagePullBackOff")
    plan = plan_for(job, [pod(job, 0), waiting])
    assert list(plan.actions) == [
        SetAttempt("digits-0", "uid-digits-0", "stop"),
        DeletePod("digits-1", "uid-digits-1", None),
    ]


def test_sidecar_that_outlives_the_worker_of_a_finished_job_is_ended() -> None:
    job = finished_job(succeeded=True)
    pods = [succeeded(job, 0), pod(job, 1, phase="Succeeded", lingers=True)]
    assert list(plan_for(job, pods).actions) == [EndPod("digits-1", "uid-digits-1")]


def test_pod_with_a_running_sidecar_keeps_its_name_until_it_is_gone() -> None:
    job = active_job(attempt=2)
    old = pod(job, 1, attempt="1", phase="Failed", lingers=True, termination=ended(1))
    plan = plan_for(with_status(job, conditions=[]), [pod(job, 0), old])
    assert [a.grace_seconds for a in only(plan.actions, DeletePod)] == [1]
    assert only(plan.actions, CreatePod) == []


def manifest(phase: str, state: dict[str, Any], proxy: str | None) -> dict[str, Any]:
    statuses: list[dict[str, Any]] = [{"name": "worker", "state": state}]
    if proxy is not None:
        statuses.append({"name": "proxy", "state": {proxy: {}}})
    return {
        "metadata": {"name": "digits-0", "uid": "1"},
        "spec": {},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("phase", "state", "proxy", "lingers"),
    [
        ("Running", {"terminated": {"exitCode": 0}}, "running", True),
        ("Running", {"terminated": {"exitCode": 0}}, "waiting", True),
        ("Running", {"terminated": {"exitCode": 0}}, "terminated", False),
        ("Running", {"terminated": {"exitCode": 0}}, None, False),
        ("Succeeded", {"terminated": {"exitCode": 0}}, "terminated", False),
        ("Running", {"running": {}}, "running", False),
    ],
)
def test_pod_whose_sidecar_still_runs_counts_as_lingering(
    phase: str, state: dict[str, Any], proxy: str | None, lingers: bool
) -> None:
    assert view_of(manifest(phase, state, proxy)).lingers is lingers


def test_pods_of_a_completed_job_end_by_themselves() -> None:
    """The kubelet changes the phase of a pod seconds after the end of its worker."""
    job = finished_job(succeeded=True)
    done = pod_manifest(
        job,
        phase="Running",
        containerStatuses=[{"name": "worker", "state": {"terminated": {"exitCode": 0}}}],
    )
    assert plan_for(job, [view_of(done)]).actions == ()


@pytest.mark.parametrize("succeeds", [True, False])
def test_ended_job_has_the_condition_of_a_batch_job_and_an_active_one_has_none(
    succeeds: bool,
) -> None:
    job = active_job(maxRestarts=0)
    running = plan_for(job, all_pods(job)).status
    failed = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    last = succeeded(job, 1) if succeeds else failed
    done = plan_for(job, [succeeded(job, 0), last]).status
    for kinds, is_end in (((COMPLETE,), succeeds), ((FAILED, STALLED), not succeeds)):
        for kind in kinds:
            assert running.condition(kind) is None
            assert (done.condition(kind) is not None) is is_end
            assert done.is_true(kind) is is_end


def test_deadline_does_not_fail_a_run_that_completed_before_the_operator_saw_it() -> None:
    """The operator was away, and the deadline has passed meanwhile."""
    job = active_job(activeDeadlineSeconds=3600)
    plan = plan_for(job, [succeeded(job, 0), succeeded(job, 1)], now=after(3601))
    assert summary(plan.status)[:2] == ("True", "Completed")
    running = plan_for(job, [succeeded(job, 0), pod(job, 1)], now=after(3601))
    assert summary(running.status)[:2] == ("False", "Failed")
