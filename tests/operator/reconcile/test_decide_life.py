"""Suspension, deadlines, the end, and what follows the end."""

from typing import Any

import pytest

from ddp_operator.api.status import ConditionType, DDPJobStatus, ProgressStatus
from ddp_operator.reconcile.life import is_finished
from ddp_operator.reconcile.plan import CreatePod, DeleteJob, DeletePod, SetAttempt
from ddp_wire.contract import ATTEMPT_STOP
from tests.operator.support import (
    NOW,
    UID,
    active_job,
    after,
    all_pods,
    condition,
    failed_word,
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
    word,
)

# --- Suspension ------------------------------------------------------------------------------


def suspended_job(**status: Any) -> Any:
    """A job that has been suspended in attempt 2, and whose pods are gone."""
    job = active_job(attempt=2, suspend=True, status=status)
    return with_status(job, **dict(plan_for(job).status))


def test_suspension_deletes_the_pods_gracefully_and_costs_nothing() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, all_pods(job))
    assert list(plan.actions) == [DeletePod(p.name, p.uid, None) for p in all_pods(job)]
    assert (plan.status.attempt, plan.status.restarts, plan.status.ready) == (1, 0, "0/2")
    assert summary(plan.status) == ("Unknown", "Suspended", "pods save and stop")
    assert not plan.status.is_true(ConditionType.SUSPENDED)
    assert not plan.status.is_true(ConditionType.RENDEZVOUSED)


def test_a_job_is_suspended_when_its_pods_are_gone() -> None:
    status = plan_for(active_job(suspend=True)).status
    assert status.is_true(ConditionType.SUSPENDED)
    assert summary(status) == ("Unknown", "Suspended", "suspended by spec.suspend")
    assert status.replicas == 0
    assert status.start_time is None


def test_suspension_waits_for_pods_that_save() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, all_pods(job, deleting=True))
    assert plan.actions == ()
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_suspension_clears_away_pods_that_have_ended() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, [pod(job, 0, phase="Succeeded", deleting=True)])
    assert list(plan.actions) == [DeletePod("digits-0", "uid-digits-0", 0)]


def test_what_happens_to_the_pods_of_a_suspended_job_is_no_failure() -> None:
    job = active_job(suspend=True)
    plan = plan_for(job, [pod(job, 0)], words={0: failed_word(0)})
    assert (plan.status.attempt, plan.status.restarts) == (1, 0)
    assert plan.status.last_failure is None


def test_a_suspended_job_misses_no_deadline() -> None:
    job = active_job(suspend=True, activeDeadlineSeconds=1, startupDeadlineSeconds=1)
    assert reason(plan_for(job, now=after(1000)).status) == "Suspended"


def test_a_job_that_is_created_suspended_creates_nothing() -> None:
    plan = plan_for(new_job(suspend=True), service=False)
    assert plan.actions == ()
    assert plan.status.attempt == 0
    assert plan.status.is_true(ConditionType.SUSPENDED)


def test_resumption_begins_the_next_attempt_and_the_clock_of_the_active_deadline() -> None:
    job = suspended_job()
    resumed = with_status(new_job(nodes=2), **dict(job.status))
    plan = plan_for(resumed, now=after(500))
    assert (plan.status.attempt, plan.status.restarts) == (3, 0)
    assert plan.status.start_time == after(500)
    assert len(only(plan.actions, CreatePod)) == 2
    assert [e.reason for e in plan.events] == ["Resumed"]
    assert plan.status.condition(ConditionType.SUSPENDED) is not None
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_a_job_that_was_created_suspended_is_not_suspended_once_it_runs() -> None:
    created = new_job(suspend=True, nodes=2)
    waiting = plan_for(created).status
    plan = plan_for(with_status(new_job(nodes=2), **dict(waiting)))
    assert plan.status.attempt == 1
    assert not plan.status.is_true(ConditionType.SUSPENDED)


def test_a_failure_from_before_the_suspension_is_not_what_a_resumed_job_recovers_from() -> None:
    job = suspended_job(last_failure=last_failure(attempt=1))
    resumed = with_status(new_job(nodes=2), **dict(job.status))
    assert reason(plan_for(resumed).status) == "Pending"


# --- Deadlines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "ends"), [(59, False), (60, True), (61, True)])
def test_the_active_deadline_ends_a_job_that_runs_for_longer(age: int, ends: bool) -> None:
    job = active_job(activeDeadlineSeconds=60)
    plan = plan_for(job, all_pods(job), now=after(age))
    assert is_finished(plan.status) is ends
    if ends:
        said = "active for longer than activeDeadlineSeconds (60)"
        assert summary(plan.status) == ("False", "Failed", said)
        assert [(e.reason, e.message) for e in plan.events] == [("DeadlineExceeded", said)]
        assert plan.status.restarts == 0


@pytest.mark.parametrize(
    ("age", "formed", "ends"),
    [(29, False, False), (30, False, True), (900, True, False)],
    ids=["in time", "late", "trains already"],
)
def test_the_startup_deadline_ends_an_attempt_that_does_not_train(
    age: int, formed: bool, ends: bool
) -> None:
    job = active_job(attempt=2, formed=formed, startupDeadlineSeconds=30)
    plan = plan_for(job, all_pods(job, ready=formed), now=after(age))
    assert is_finished(plan.status) is ends
    if ends:
        assert [e.reason for e in plan.events] == ["StartupDeadlineExceeded"]
        assert summary(plan.status)[2].startswith(
            "attempt 2 did not train within startupDeadlineSeconds (30)"
        )


def test_the_startup_deadline_says_what_was_waited_for() -> None:
    job = active_job(formed=False, startupDeadlineSeconds=30)
    seen = "digits-0 waits: ErrImagePull: no such image"
    waiting = pod(job, 0, phase="Pending", ready=False, waiting="ErrImagePull: no such image")
    first = with_status(job, **dict(plan_for(job, [waiting, pod(job, 1)]).status))
    plan = plan_for(first, [waiting, pod(job, 1)], now=after(30))
    assert summary(plan.status)[2].endswith(f": {seen}")


COMMAND: dict[str, Any] = {"command": ["python", "train.py"]}


@pytest.mark.parametrize(
    ("spec", "formed", "age", "wait"),
    [
        (COMMAND, True, 0, 5.0),
        (COMMAND, False, 0, 1.0),
        ({**COMMAND, "activeDeadlineSeconds": 60}, True, 58, 2.0),
        ({**COMMAND, "activeDeadlineSeconds": 600}, True, 0, 5.0),
        ({**COMMAND, "startupDeadlineSeconds": 60}, False, 59.5, 0.5),
        ({**COMMAND, "startupDeadlineSeconds": 60}, True, 59.5, 5.0),
    ],
    ids=["runs", "starts", "active deadline near", "far", "startup deadline near", "not any more"],
)
def test_the_next_look_is_not_later_than_the_next_deadline(
    spec: dict[str, Any], formed: bool, age: float, wait: float
) -> None:
    job = active_job(formed=formed, **spec)
    pods = all_pods(job, ready=formed)
    assert plan_for(job, pods, now=after(age)).requeue_seconds == wait


def test_the_next_look_is_soon_until_a_task_has_told_of_its_progress() -> None:
    job = active_job()
    assert plan_for(job, all_pods(job)).requeue_seconds == 1.0
    told = with_status(job, progress=ProgressStatus(step=1, time=NOW))
    assert plan_for(told, all_pods(told)).requeue_seconds == 5.0


def test_the_next_look_is_soon_once_an_agent_has_ended_its_attempt() -> None:
    job = active_job()
    plan = plan_for(job, all_pods(job), words={0: word(0, phase="Succeeded")})
    assert plan.requeue_seconds == 1.0


# --- The end -------------------------------------------------------------------------------------


def test_a_run_is_complete_when_every_pod_succeeded_in_the_current_attempt() -> None:
    job = active_job(attempt=2, procsPerNode=4)
    plan = plan_for(job, all_pods(job, phase="Succeeded", ready=False))
    said = "all 8 ranks of attempt 2 exited 0"
    assert summary(plan.status) == ("True", "Completed", said)
    assert plan.status.completion_time == NOW
    assert plan.status.ready == "0/2"
    assert [(e.type.value, e.reason, e.message) for e in plan.events] == [
        ("Normal", "Completed", said)
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
    ids=["one runs", "one ends", "one of an earlier attempt", "one waits"],
)
def test_a_run_is_not_complete_while_one_pod_is_not(second: dict[str, Any]) -> None:
    job = active_job(attempt=2)
    done = pod(job, 0, phase="Succeeded", ready=False)
    plan = plan_for(job, [done, pod(job, 1, **second)])
    assert not is_finished(plan.status)


def test_the_generation_that_was_judged_stands_in_the_status_of_a_finished_job() -> None:
    job = active_job(activeDeadlineSeconds=60)
    edited = job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": 7})})
    ended_job = with_status(edited, **dict(plan_for(edited, now=after(60)).status))
    assert plan_for(ended_job, now=after(61)).status.observed_generation == 7


# --- After the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("succeeded", [True, False], ids=["completed", "failed"])
def test_a_finished_job_is_never_taken_up_again(succeeded: bool) -> None:
    job = finished_job(succeeded=succeeded)
    edited = with_status(new_job(nodes=4, image="other:1"), **dict(job.status))
    plan = plan_for(edited, service=False)
    assert plan.status.attempt == 1
    assert plan.actions == ()


def test_the_pods_of_a_failed_job_are_told_to_stop_and_kept_for_their_logs() -> None:
    job = finished_job(succeeded=False, nodes=3)
    plan = plan_for(job, [pod(job, 0), pod(job, 1, phase="Failed"), pod(job, 2, deleting=True)])
    assert list(plan.actions) == [SetAttempt("digits-0", "uid-digits-0", ATTEMPT_STOP)]


def test_pods_are_told_to_stop_once() -> None:
    job = finished_job(succeeded=False)
    assert plan_for(job, all_pods(job, attempt=ATTEMPT_STOP)).actions == ()


def test_the_pods_of_a_completed_job_are_kept() -> None:
    job = finished_job(succeeded=True)
    assert plan_for(job, all_pods(job, phase="Succeeded")).actions == ()


@pytest.mark.parametrize("succeeded", [True, False], ids=["completed", "failed"])
def test_clean_policy_all_deletes_the_pods_of_a_finished_job(succeeded: bool) -> None:
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
def test_the_time_to_live_of_a_finished_job(
    ttl: int | None, age: int, deleted: bool, wait: float | None
) -> None:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    plan = plan_for(finished_job(succeeded=True, **spec), now=after(age))
    assert list(plan.actions) == ([DeleteJob(UID)] if deleted else [])
    assert plan.requeue_seconds == wait


def test_a_finished_job_counts_the_pods_that_are_left() -> None:
    job = finished_job(succeeded=True)
    assert plan_for(job, [pod(job, 0, phase="Succeeded")]).status.replicas == 1


@pytest.mark.parametrize(
    ("value", "finished"), [("True", True), ("False", True), ("Unknown", False)]
)
def test_a_job_is_finished_when_its_summary_is_decided(value: str, finished: bool) -> None:
    status = DDPJobStatus(conditions=[condition(ConditionType.SUCCEEDED, value)])
    assert is_finished(status) is finished
    assert not is_finished(DDPJobStatus())
    assert to_wire(status)["conditions"][0]["status"] == value
