"""What the operator announces about a job, and how it describes it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddp_operator.api.goodput import GoodputStatus
from ddp_operator.api.job import DDPJob
from ddp_operator.api.recovery import RecoveryStatus
from ddp_operator.api.status import Cause, ConditionType, ProgressStatus
from ddp_operator.api.summary import MESSAGE_CHARACTERS, shortened
from ddp_operator.reconcile.notifications import Notification, find_notifications
from tests.operator.support import (
    NOW,
    UID,
    active_job,
    after,
    all_pods,
    condition,
    ended,
    last_failure,
    plan_for,
    pod,
    with_status,
)

AGE = timedelta(minutes=15)


def notifications(job: DDPJob, now: datetime = NOW) -> list[Notification]:
    return find_notifications(job, now=now, age=AGE)


def kinds(job: DDPJob, now: datetime = NOW) -> list[str]:
    return [json.loads(one.body)["type"] for one in notifications(job, now)]


def completed_job() -> DDPJob:
    job = active_job()
    done = all_pods(job, phase="Succeeded", ready=False, termination=ended(0))
    return with_status(job, **dict(plan_for(job, done).status))


def failed_job() -> DDPJob:
    job = active_job(maxRestarts=0)
    failed = pod(job, 1, phase="Failed", ready=False, termination=ended(1))
    return with_status(job, **dict(plan_for(job, [pod(job, 0), failed]).status))


def recovered_job(**fields: Any) -> DDPJob:
    given = {"attempt": 2, "time": NOW, "fault": "rank 1 failed", "first_step_milliseconds": 1300}
    recovery = RecoveryStatus(**(given | fields))
    status = {"last_recovery": recovery, "resumed_from_step": 40, "last_failure": last_failure()}
    return active_job(attempt=2, status=status)


def test_running_job_announces_nothing() -> None:
    assert kinds(active_job()) == []
    assert kinds(recovered_job(first_step_milliseconds=None), after(5)) == []


def test_end_of_a_job_is_announced_once_by_its_own_id() -> None:
    completed, failed = completed_job(), failed_job()
    assert kinds(completed) == ["ddpjob.completed"]
    assert kinds(failed) == ["ddpjob.failed"]
    (first,), (second,) = (
        notifications(completed),
        notifications(with_status(completed, replicas=0), after(60)),
    )
    assert first.id == second.id
    assert "." not in first.id
    assert notifications(failed)[0].id != first.id
    other = completed.metadata.model_copy(update={"uid": "another"})
    assert notifications(completed.model_copy(update={"metadata": other}))[0].id != first.id


def test_each_recovery_is_announced_with_its_fault() -> None:
    (notification,) = notifications(recovered_job(), after(5))
    assert notification.time == after(1.3)
    data = json.loads(notification.body)["data"]
    assert data["recovery"] == {
        "attempt": 2,
        "fault": "rank 1 failed",
        "faultTime": "2026-03-01T12:00:00Z",
        "milliseconds": 1300,
        "resumedFromStep": 40,
    }
    (later,) = notifications(with_status(recovered_job(attempt=3), attempt=3), after(5))
    assert later.id != notification.id


def test_invalid_job_counts_as_failed_until_it_is_edited() -> None:
    stalled = [condition(ConditionType.STALLED, "True", "Invalid")]
    job = with_status(active_job(), conditions=stalled, observed_generation=3)
    assert kinds(job) == ["ddpjob.failed"]
    (first,), (edited,) = notifications(job), notifications(with_status(job, observed_generation=4))
    assert first.id != edited.id


@pytest.mark.parametrize("job", [completed_job(), failed_job(), recovered_job()])
def test_old_news_is_not_announced_again_after_a_restart(job: DDPJob) -> None:
    assert len(notifications(job, after(899))) == 1
    assert notifications(job, after(902)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"first_step_milliseconds": 10**18},
        {"time": datetime.max.replace(tzinfo=UTC)},
    ],
)
def test_absurd_times_of_an_agent_break_nothing(fields: dict[str, Any]) -> None:
    (notification,) = notifications(recovered_job(**fields))
    assert notification.time <= NOW


def test_body_has_the_summary_of_the_job_and_no_traceback() -> None:
    failure = last_failure(cause=Cause.APPLICATION, traceback="secret = 1", message="x" * 9000)
    shown = condition(ConditionType.SUCCEEDED, "False", "Failed")
    job = with_status(
        failed_job(),
        last_failure=failure,
        conditions=[shown.model_copy(update={"message": "x" * 9000})],
        progress=ProgressStatus(step=60, total_steps=120),
        goodput=GoodputStatus(percent="97.3%"),
    )
    (notification,) = notifications(job)
    document = json.loads(notification.body)
    assert b"secret" not in notification.body
    assert len(notification.body) < 2000
    assert set(document) == {"type", "timestamp", "data"}
    assert document["timestamp"] == "2026-03-01T12:00:00Z"
    assert document["data"]["namespace"] == "team-a"
    assert document["data"]["job"] == {
        "name": "digits",
        "uid": UID,
        "state": "Failed",
        "message": shortened("x" * 9000),
        "cause": "Application",
        "reason": "RankFailed",
        "attempts": 1,
        "creationTime": "2026-03-01T12:00:00Z",
        "startTime": "2026-03-01T12:00:00Z",
        "completionTime": "2026-03-01T12:00:00Z",
        "goodput": "97.3%",
        "step": 60,
        "totalSteps": 120,
        "nodes": 2,
        "ranks": 2,
    }


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert shortened("x" * MESSAGE_CHARACTERS) == "x" * MESSAGE_CHARACTERS
    assert len(shortened("x" * (MESSAGE_CHARACTERS + 1))) == MESSAGE_CHARACTERS
