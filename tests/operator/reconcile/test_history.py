"""The attempts that have ended, as `kubectl describe` tells them."""

from typing import Any

import pytest

from ddp_operator.api.status import AttemptStatus, Cause, CheckpointStatus, DDPJobStatus
from ddp_operator.reconcile.history import ended
from tests.operator.support import (
    NOW,
    active_job,
    after,
    all_pods,
    failed_word,
    new_job,
    plan_for,
    pod,
    with_status,
    word,
)

SAVED: dict[str, Any] = {
    "attempt_start_step": 20,
    "last_checkpoint": CheckpointStatus(step=40, path="/checkpoints/a", time=NOW),
}


def told(status: DDPJobStatus) -> AttemptStatus:
    (attempt,) = status.attempts
    return attempt


def story(cause: Cause | None, reason: str, message: str) -> AttemptStatus:
    """What is told of attempt 2, which began with step 20 and ended with step 40."""
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


def test_a_fallen_rank() -> None:
    job = attempt()
    plan = plan_for(
        job, all_pods(job), words={1: failed_word(1, attempt=2, message="E: x")}, now=after(60.5)
    )
    said = "rank 1 on digits-1 failed: E: x"
    assert told(plan.status) == story(Cause.APPLICATION, "RankFailed", said)
    assert plan.status.attempt_start_step == 40


def test_a_lost_pod() -> None:
    job = attempt()
    plan = plan_for(job, [pod(job, 0)], now=after(60))
    assert told(plan.status) == story(Cause.INFRASTRUCTURE, "PodLost", "digits-1 was deleted")


def test_a_stop_on_request() -> None:
    job = attempt()
    words = {1: word(1, attempt=2, phase="Preempted")}
    plan = plan_for(job, all_pods(job), words=words, now=after(60))
    said = "digits-1 was stopped on request"
    assert told(plan.status) == story(Cause.FREE, "Preempted", said)
    assert plan.status.free_restarts == 1


@pytest.mark.parametrize("exit_code", [1, 2], ids=["spent budget", "bad input"])
def test_the_attempt_that_failed_the_job(exit_code: int) -> None:
    job = attempt(maxRestarts=0)
    words = {1: failed_word(1, attempt=2, exit_code=exit_code, message="E: x")}
    plan = plan_for(job, all_pods(job), words=words, now=after(60))
    reason = "BadInput" if exit_code == 2 else "RankFailed"
    said = "rank 1 on digits-1 failed: E: x"
    assert told(plan.status) == story(Cause.APPLICATION, reason, said)


def test_completion() -> None:
    job = attempt()
    plan = plan_for(job, all_pods(job, phase="Succeeded", ready=False), now=after(60))
    assert told(plan.status) == story(None, "Completed", "all 2 ranks of attempt 2 exited 0")


def test_a_deadline() -> None:
    job = attempt(activeDeadlineSeconds=60)
    plan = plan_for(job, all_pods(job), now=after(60))
    said = "active for longer than activeDeadlineSeconds (60)"
    assert told(plan.status) == story(None, "DeadlineExceeded", said)


def test_a_changed_spec() -> None:
    job = attempt()
    edited = with_status(new_job(nodes=2, image="other:1"), **dict(job.status))
    plan = plan_for(edited, all_pods(job), now=after(60))
    assert told(plan.status) == story(Cause.FREE, "SpecChanged", "the spec was changed")
    assert (plan.status.free_restarts, plan.status.restarts) == (1, 0)


def test_suspension_is_told_once_and_counted_when_the_run_goes_on() -> None:
    job = attempt(suspend=True)
    status = plan_for(job, all_pods(job), now=after(60)).status
    said = story(Cause.FREE, "Suspended", "spec.suspend was set")
    assert (told(status), status.free_restarts) == (said, 0)
    status = plan_for(with_status(job, **dict(status)), now=after(90)).status
    assert told(status) == said
    resumed = with_status(new_job(nodes=2), **dict(status))
    status = plan_for(resumed, now=after(99)).status
    assert (told(status), status.attempt, status.free_restarts) == (said, 3, 1)


def test_a_job_that_is_created_suspended_has_no_story() -> None:
    job = new_job(suspend=True)
    assert plan_for(job, service=False).status.attempts == []


def test_the_last_ten_attempts_are_kept_and_sentences_are_cut() -> None:
    status = DDPJobStatus()
    for number in range(1, 13):
        status = status.model_copy(update={"attempt": number})
        status = ended(status, NOW, cause=None, reason="Test", message="x" * 1000)
        assert ended(status, NOW, cause=None, reason="Again", message="") == status
    assert [a.number for a in status.attempts] == list(range(3, 13))
    assert {len(a.message) for a in status.attempts} == {256}
