"""The ended attempts in the status, which `kubectl describe` shows."""

from typing import Any

import pytest

from ddp_operator.api.status import AttemptStatus, Cause, CheckpointStatus, DDPJobStatus
from ddp_operator.reconcile.ended_attempts import with_ended_attempt
from ddp_wire.messages import CheckpointInfo
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    failed_status,
    new_job,
    plan_for,
    pod,
    with_status,
)

SAVED: dict[str, Any] = {
    "attempt_start_step": 20,
    "last_checkpoint": CheckpointStatus(step=40, path="/checkpoints/a", time=NOW),
}


def last_attempt(status: DDPJobStatus) -> AttemptStatus:
    (attempt,) = status.attempts
    return attempt


def expected_attempt(cause: Cause | None, reason: str, message: str) -> AttemptStatus:
    """Return the record of attempt 2, which started at step 20 and ended at step 40."""
    return AttemptStatus(
        number=2,
        start_time=NOW,
        end_time=after(60),
        cause=cause,
        reason=reason,
        message=message,
        start_step=20,
        end_step=40,
    )


def attempt(**spec: Any) -> Any:
    return active_job(attempt=2, status=SAVED, **spec)


def test_attempt_that_a_failed_rank_ended_is_recorded() -> None:
    job = attempt()
    plan = plan_for(
        job,
        all_pods(job),
        statuses={1: failed_status(1, attempt=2, message="E: x")},
        now=after(60.5),
    )
    message = "rank 1 on digits-1 failed: E: x"
    assert last_attempt(plan.status) == expected_attempt(Cause.APPLICATION, "RankFailed", message)
    assert plan.status.attempt_start_step == 40


def test_attempt_that_a_lost_pod_ended_is_recorded() -> None:
    job = attempt()
    plan = plan_for(job, [pod(job, 0)], now=after(60))
    assert last_attempt(plan.status) == expected_attempt(
        Cause.INFRASTRUCTURE, "PodLost", "digits-1 was deleted"
    )


def test_attempt_that_stopped_on_request_is_recorded() -> None:
    job = attempt()
    statuses = {1: agent_status(1, attempt=2, phase="Preempted")}
    plan = plan_for(job, all_pods(job), statuses=statuses, now=after(60))
    message = "digits-1 was stopped on request"
    assert last_attempt(plan.status) == expected_attempt(Cause.FREE, "Preempted", message)
    assert plan.status.free_restarts == 1


@pytest.mark.parametrize("exit_code", [1, 2], ids=["budget used up", "bad input"])
def test_attempt_that_failed_the_job_is_recorded(exit_code: int) -> None:
    job = attempt(maxRestarts=0)
    statuses = {1: failed_status(1, attempt=2, exit_code=exit_code, message="E: x")}
    plan = plan_for(job, all_pods(job), statuses=statuses, now=after(60))
    reason = "BadInput" if exit_code == 2 else "RankFailed"
    message = "rank 1 on digits-1 failed: E: x"
    assert last_attempt(plan.status) == expected_attempt(Cause.APPLICATION, reason, message)


def test_attempt_that_completed_the_job_is_recorded() -> None:
    job = attempt()
    plan = plan_for(job, all_pods(job, phase="Succeeded", ready=False), now=after(60))
    assert last_attempt(plan.status) == expected_attempt(
        None, "Completed", "all 2 ranks of attempt 2 exited with code 0"
    )


def test_attempt_that_exceeded_a_deadline_is_recorded() -> None:
    job = attempt(activeDeadlineSeconds=60)
    plan = plan_for(job, all_pods(job), now=after(60))
    message = "the job was active for longer than activeDeadlineSeconds (60)"
    assert last_attempt(plan.status) == expected_attempt(None, "DeadlineExceeded", message)


def test_attempt_that_a_changed_spec_ended_is_recorded() -> None:
    job = attempt()
    edited = with_status(new_job(nodes=2, image="other:1"), **dict(job.status))
    plan = plan_for(edited, all_pods(job), now=after(60))
    assert last_attempt(plan.status) == expected_attempt(
        Cause.FREE, "SpecChanged", "the spec was changed"
    )
    assert (plan.status.free_restarts, plan.status.restarts) == (1, 0)


def test_suspended_attempt_is_recorded_once_and_counted_on_resumption() -> None:
    job = attempt(suspend=True)
    status = plan_for(job, all_pods(job), now=after(60)).status
    expected = expected_attempt(Cause.FREE, "Suspended", "spec.suspend was set")
    assert (last_attempt(status), status.free_restarts) == (expected, 0)
    status = plan_for(with_status(job, **dict(status)), now=after(90)).status
    assert last_attempt(status) == expected
    resumed = with_status(new_job(nodes=2), **dict(status))
    status = plan_for(resumed, now=after(99)).status
    assert (last_attempt(status), status.attempt, status.free_restarts) == (expected, 3, 1)


def test_job_created_suspended_has_no_ended_attempt() -> None:
    job = new_job(suspend=True)
    assert plan_for(job, service=False).status.attempts == []


def test_status_keeps_ten_attempts_with_truncated_messages() -> None:
    status = DDPJobStatus()
    for number in range(1, 13):
        status = status.model_copy(update={"attempt": number})
        status = with_ended_attempt(status, NOW, cause=None, reason="Test", message="x" * 1000)
        assert with_ended_attempt(status, NOW, cause=None, reason="Again", message="") == status
    assert [a.number for a in status.attempts] == list(range(3, 13))
    assert {len(a.message) for a in status.attempts} == {256}


def test_suspended_attempt_ends_at_the_checkpoint_that_its_pods_save_while_they_stop() -> None:
    job = attempt(suspend=True)
    first = plan_for(job, all_pods(job), now=after(60)).status
    assert last_attempt(first).end_step == 40
    newest = CheckpointInfo(step=47, path="/checkpoints/b", at=after(61).timestamp())
    saved = agent_status(attempt=2, phase="Preempted", checkpoint=newest)
    pods = all_pods(job, deleting=True)
    job = job.model_copy(update={"status": first})
    last = plan_for(job, pods, statuses={0: saved}, now=after(62)).status
    assert (last_attempt(last).end_step, last_attempt(last).end_time) == (47, after(60))
    assert last.last_checkpoint is not None
    assert last.last_checkpoint.step == 47
