"""Suspension, deadlines, completion, and the clean-up of finished jobs."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.status import ConditionType, DDPJobStatus, ProgressStatus
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import CreatePod, DeleteJob, DeletePod, SetAttempt
from ddp_wire.contract import ATTEMPT_STOP
from tests.operator.support import (
    NOW,
    UID,
    active_job,
    after,
    agent_status,
    all_pods,
    condition,
    failed_status,
    finished_job,
    last_failure,
    new_job,
    only,
    plan_for,
    pod,
    reason,
    summary,
    to_wire,
    with_status,
)

# --- Suspension ------------------------------------------------------------------------------


def suspended_job(**status: Any) -> Any:
    """Return a job that was suspended in attempt 2 and has no pods left."""
    job = active_job(attempt=2, suspend=True, status=status)
    return with_status(job, **dict(plan_for(job).status))


def test_suspension_deletes_the_pods_gracefully_and_uses_no_budget() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, all_pods(job))
    assert list(plan.actions) == [DeletePod(p.name, p.uid, None) for p in all_pods(job)]
    assert (plan.status.attempt, plan.status.restarts, plan.status.ready) == (1, 0, "0/2")
    assert summary(plan.status) == (
        "Unknown",
        "Suspended",
        "spec.suspend is true and the pods are saving and stopping",
    )
    assert not plan.status.is_true(ConditionType.SUSPENDED)
    assert not plan.status.is_true(ConditionType.RENDEZVOUSED)


def test_job_is_suspended_when_its_pods_are_gone() -> None:
    status = plan_for(active_job(suspend=True)).status
    assert status.is_true(ConditionType.SUSPENDED)
    assert summary(status) == (
        "Unknown",
        "Suspended",
        "spec.suspend is true and all pods have ended",
    )
    assert status.replicas == 0
    assert status.start_time is None


def test_suspension_waits_for_pods_that_save() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, all_pods(job, deleting=True))
    assert plan.actions == ()
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_suspension_deletes_pods_that_have_ended() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, [pod(job, 0, phase="Succeeded", deleting=True)])
    assert list(plan.actions) == [DeletePod("digits-0", "uid-digits-0", 0)]


def test_failed_rank_of_a_suspended_job_is_no_failure() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, [pod(job, 0)], statuses={0: failed_status(0)})
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert plan.status.last_failure is None


def test_suspended_job_exceeds_no_deadline() -> None:
    job = active_job(suspend=True, activeDeadlineSeconds=1, startupDeadlineSeconds=1)
    assert reason(plan_for(job, now=after(1000)).status) == "Suspended"


def test_job_created_suspended_creates_no_children() -> None:
    plan = plan_for(new_job(suspend=True), service=False)
    assert plan.actions == ()
    assert plan.status.attempt == 0
    assert plan.status.is_true(ConditionType.SUSPENDED)


def test_resumption_starts_the_next_attempt_and_restarts_the_active_deadline() -> None:
    job = suspended_job()
    resumed = with_status(new_job(nodes=2), **dict(job.status))
    plan = plan_for(resumed, now=after(500))
    assert (plan.status.attempt, plan.status.restarts) == (3, 0)
    assert plan.status.start_time == after(500)
    assert len(only(plan.actions, CreatePod)) == 2
    assert [e.reason for e in plan.events] == ["Resumed"]
    assert plan.status.condition(ConditionType.SUSPENDED) is not None
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_job_created_suspended_is_no_longer_suspended_once_it_runs() -> None:
    created = new_job(suspend=True, nodes=2)
    waiting = plan_for(created).status
    plan = plan_for(with_status(new_job(nodes=2), **dict(waiting)))
    assert plan.status.attempt == 1
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_resumed_job_does_not_recover_from_a_failure_before_the_suspension() -> None:
    job = suspended_job(last_failure=last_failure(attempt=1))
    resumed = with_status(new_job(nodes=2), **dict(job.status))
    assert reason(plan_for(resumed).status) == "Pending"


# --- Deadlines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "ends"), [(59, False), (60, True), (61, True)])
def test_active_deadline_fails_a_job_that_runs_longer(age: int, ends: bool) -> None:
    job = active_job(activeDeadlineSeconds=60)
    plan = plan_for(job, all_pods(job), now=after(age))
    assert is_finished(plan.status) is ends
    if ends:
        message = "the job was active for longer than activeDeadlineSeconds (60)"
        assert summary(plan.status) == ("False", "Failed", message)
        assert [(e.reason, e.message) for e in plan.events] == [("DeadlineExceeded", message)]
        assert plan.status.restarts == 0


@pytest.mark.parametrize(
    ("age", "formed", "ends"),
    [(29, False, False), (30, False, True), (900, True, False)],
    ids=["in time", "late", "already training"],
)
def test_startup_deadline_fails_a_job_that_does_not_start_training(
    age: int, formed: bool, ends: bool
) -> None:
    job = active_job(attempt=2, formed=formed, startupDeadlineSeconds=30)
    plan = plan_for(job, all_pods(job, ready=formed), now=after(age))
    assert is_finished(plan.status) is ends
    if ends:
        assert [e.reason for e in plan.events] == ["StartupDeadlineExceeded"]
        assert summary(plan.status)[2].startswith(
            "attempt 2 did not start training within startupDeadlineSeconds (30)"
        )


def test_startup_deadline_message_names_what_the_job_waited_for() -> None:
    job = active_job(formed=False, startupDeadlineSeconds=30)
    reason = "digits-0 waits: ErrImagePull: no such image"
    waiting = pod(job, 0, phase="Pending", ready=False, waiting="ErrImagePull: no such image")
    first = with_status(job, **dict(plan_for(job, [waiting, pod(job, 1)]).status))
    plan = plan_for(first, [waiting, pod(job, 1)], now=after(30))
    assert summary(plan.status)[2].endswith(f": {reason}")


COMMAND: dict[str, Any] = {"command": ["python", "train.py"]}


@pytest.mark.parametrize(
    ("spec", "formed", "age", "seconds"),
    [
        (COMMAND, True, 0, 5.0),
        (COMMAND, False, 0, 1.0),
        ({**COMMAND, "activeDeadlineSeconds": 60}, True, 58, 2.0),
        ({**COMMAND, "activeDeadlineSeconds": 600}, True, 0, 5.0),
        ({**COMMAND, "startupDeadlineSeconds": 60}, False, 59.5, 0.5),
        ({**COMMAND, "startupDeadlineSeconds": 60}, True, 59.5, 5.0),
    ],
    ids=[
        "running",
        "starting",
        "active deadline near",
        "active deadline far",
        "startup deadline near",
        "startup deadline over",
    ],
)
def test_requeue_is_not_later_than_the_next_deadline(
    spec: dict[str, Any], formed: bool, age: float, seconds: float
) -> None:
    job = active_job(formed=formed, **spec)
    pods = all_pods(job, ready=formed)
    assert plan_for(job, pods, now=after(age)).requeue_seconds == seconds


def test_job_is_requeued_every_second_until_its_task_reports_progress() -> None:
    job = active_job()
    assert plan_for(job, all_pods(job)).requeue_seconds == 1.0
    reported = with_status(job, progress=ProgressStatus(step=1, time=NOW))
    assert plan_for(reported, all_pods(reported)).requeue_seconds == 5.0


@pytest.mark.parametrize(("interval", "seconds"), [(1.0, 5.0), (5.0, 5.0), (50.0, 50.0)])
def test_training_job_in_a_large_fleet_is_requeued_after_its_progress_interval(
    interval: float, seconds: float
) -> None:
    job = with_status(active_job(), progress=ProgressStatus(step=1, time=NOW))
    plan = plan_for(job, all_pods(job), progress_interval=timedelta(seconds=interval))
    assert plan.requeue_seconds == seconds


def test_job_is_requeued_after_one_second_once_an_agent_has_ended_its_attempt() -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), statuses={0: agent_status(0, phase="Succeeded")})
    assert plan.requeue_seconds == 1.0


# --- Completion ----------------------------------------------------------------------------------


def test_job_completes_when_every_pod_succeeded_in_the_current_attempt() -> None:
    job = active_job(attempt=2, procsPerNode=4)
    plan = plan_for(job, all_pods(job, phase="Succeeded", ready=False))
    message = "all 8 ranks of attempt 2 exited with code 0"
    assert summary(plan.status) == ("True", "Completed", message)
    assert plan.status.completion_time == NOW
    assert plan.status.ready == "0/2"
    assert [(e.type.value, e.reason, e.message) for e in plan.events] == [
        ("Normal", "Completed", message)
    ]
    assert plan.requeue_seconds == 0


@pytest.mark.parametrize(
    "second",
    [
        {"phase": "Running"},
        {"phase": "Running", "ready": False},
        {"phase": "Succeeded", "attempt": "1"},
        {"phase": "Pending"},
    ],
    ids=["running", "running but not ready", "succeeded in an earlier attempt", "pending"],
)
def test_job_does_not_complete_before_every_pod_succeeded(second: dict[str, Any]) -> None:
    job = active_job(attempt=2)
    done = pod(job, 0, phase="Succeeded", ready=False)
    plan = plan_for(job, [done, pod(job, 1, **second)])
    assert not is_finished(plan.status)


def test_finished_job_has_the_observed_generation() -> None:
    job = active_job(activeDeadlineSeconds=60)
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 7})})
    ended_job = with_status(edited, **dict(plan_for(edited, now=after(60)).status))
    assert plan_for(ended_job, now=after(61)).status.observed_generation == 7


# --- Finished jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("succeeded", [True, False], ids=["completed", "failed"])
def test_finished_job_never_restarts(succeeded: bool) -> None:
    job = finished_job(succeeded=succeeded)
    edited = with_status(new_job(nodes=4, image="other:1"), **dict(job.status))
    plan = plan_for(edited, service=False)
    assert plan.status.attempt == 1
    assert plan.actions == ()


def test_pods_of_a_failed_job_are_stopped_and_kept_for_their_logs() -> None:
    job = finished_job(succeeded=False, nodes=3)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed"), pod(job, 2, deleting=True)])
    assert list(plan.actions) == [SetAttempt("digits-0", "uid-digits-0", ATTEMPT_STOP)]


def test_pods_are_stopped_once() -> None:
    job = finished_job(succeeded=False)
    assert plan_for(job, all_pods(job, attempt=ATTEMPT_STOP)).actions == ()


def test_pods_of_a_completed_job_are_kept() -> None:
    job = finished_job(succeeded=True)
    assert plan_for(job, all_pods(job, phase="Succeeded")).actions == ()


@pytest.mark.parametrize("succeeded", [True, False], ids=["completed", "failed"])
def test_clean_pod_policy_all_deletes_the_pods_of_a_finished_job(succeeded: bool) -> None:
    job = finished_job(succeeded=succeeded, cleanPodPolicy="All")
    seen = [pod(job, 0, phase="Succeeded"), pod(job, 1)]
    assert list(plan_for(job, seen).actions) == [
        DeletePod("digits-0", "uid-digits-0", 0),
        DeletePod("digits-1", "uid-digits-1", None),
    ]


@pytest.mark.parametrize(
    ("ttl", "age", "deleted", "wait"),
    [
        (None, 10_000, False, None),
        (0, 0, True, None),
        (60, 59, False, 1.0),
        (60, 60, True, None),
        (60, 9999, True, None),
    ],
    ids=["no ttl", "at once", "a second before", "on time", "late"],
)
def test_finished_job_is_deleted_after_its_ttl(
    ttl: int | None, age: int, deleted: bool, wait: float | None
) -> None:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    plan = plan_for(finished_job(succeeded=True, **spec), now=after(age))
    assert list(plan.actions) == ([DeleteJob(UID)] if deleted else [])
    assert plan.requeue_seconds == wait


def test_finished_job_counts_the_remaining_pods() -> None:
    job = finished_job(succeeded=True)
    assert plan_for(job, [pod(job, 0, phase="Succeeded")]).status.replicas == 1


@pytest.mark.parametrize(
    ("value", "finished"), [("True", True), ("False", True), ("Unknown", False)]
)
def test_job_counts_as_finished_when_condition_succeeded_is_true_or_false(
    value: str, finished: bool
) -> None:
    status = DDPJobStatus(conditions=[condition(ConditionType.SUCCEEDED, value)])
    assert is_finished(status) is finished
    assert not is_finished(DDPJobStatus())
    assert to_wire(status)["conditions"][0]["status"] == value
