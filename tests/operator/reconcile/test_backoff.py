"""Back-off between attempts that end without progress."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, CheckpointStatus, ConditionType
from ddp_operator.reconcile import backoff
from ddp_operator.reconcile.new_attempt import STARTING_REQUEUE_SECONDS
from ddp_operator.reconcile.plan import CreatePod, Plan, SetAttempt
from ddp_wire.contract import ExitCode
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    condition,
    failed_status,
    new_job,
    plan_for,
    pod,
    summary,
    with_status,
)


def job_with(count: int, **more: Any) -> DDPJob:
    return active_job(status={"attempts_without_progress": count, **more}, maxRestarts=99)


def fail(job: DDPJob, seconds: float = 0.0) -> Plan:
    return plan_for(job, all_pods(job), statuses={1: failed_status(1)}, now=after(seconds))


@pytest.mark.parametrize(
    ("before", "seconds"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (99, 300)],
)
def test_delay_doubles_with_each_attempt_without_progress(before: int, seconds: int) -> None:
    status = fail(job_with(before)).status
    assert status.attempts_without_progress == before + 1
    assert status.attempt_start_time == after(seconds)


@pytest.mark.parametrize(
    ("trained", "saved", "resets"), [(59, False, False), (60, False, True), (0, True, True)]
)
def test_progress_resets_the_delay(trained: float, saved: bool, resets: bool) -> None:
    checkpoint = CheckpointStatus(step=9, path="/c", time=NOW) if saved else None
    plan = fail(job_with(7, last_checkpoint=checkpoint), trained)
    assert plan.status.attempts_without_progress == (0 if resets else 8)
    assert bool(plan.actions) is resets


def test_free_restarts_are_limited_by_rate() -> None:
    """A program that always asks for a restart would otherwise restart without end."""
    job = job_with(9)
    stopped = {1: agent_status(1, phase="Preempted")}
    status = plan_for(job, all_pods(job), statuses=stopped).status
    assert status.last_failure is not None
    assert status.last_failure.cause is Cause.FREE
    assert status.attempt_start_time == after(256)


def test_node_that_refuses_every_pod_does_not_exhaust_the_budget() -> None:
    job = with_status(job_with(9), conditions=[condition(ConditionType.RENDEZVOUSED, "False")])
    refused = pod(job, 1, phase="Failed", ready=False, reason="UnexpectedAdmissionError")
    plan = plan_for(job, [pod(job, 0, ready=False), refused])
    assert plan.status.infrastructure_restarts == 1
    assert plan.actions == ()
    assert plan.requeue_seconds == 256


def test_attempt_starts_after_its_delay() -> None:
    first = fail(job_with(4))
    at = "12:00:08 UTC"
    assert summary(first.status)[1] == "Recovering"
    assert f"attempt 2 starts at {at} because rank 1" in summary(first.status)[2]
    assert [event.reason for event in first.events] == ["Restarting"]
    job = job_with(4).model_copy(update={"status": first.status})
    pods = [one for one in all_pods(job_with(4)) if one.index == 0]
    early = plan_for(job, pods, now=after(7))
    assert early.actions == ()
    assert early.status.next_action == f"the operator starts attempt 2 at {at}"
    assert early.requeue_seconds == pytest.approx(1.0)
    assert early.status.conditions == first.status.conditions
    due = plan_for(job, pods, now=after(8))
    assert {type(action) for action in due.actions} == {SetAttempt, CreatePod}
    assert due.requeue_seconds == STARTING_REQUEUE_SECONDS


def test_clock_set_back_does_not_prolong_the_delay() -> None:
    first = fail(job_with(4))
    job = job_with(4).model_copy(update={"status": first.status})
    assert plan_for(job, [], now=NOW - timedelta(minutes=10)).actions


def test_changed_spec_ends_the_delay() -> None:
    waiting = fail(job_with(9)).status
    edited = new_job(nodes=2, maxRestarts=99, config={"epochs": 9})
    plan = plan_for(edited.model_copy(update={"status": waiting}), [])
    assert plan.status.attempts_without_progress == 0
    assert plan.actions


def test_bad_input_fails_the_job_at_once() -> None:
    job = job_with(9)
    failed = failed_status(1, exit_code=int(ExitCode.BAD_INPUT))
    plan = plan_for(job, all_pods(job), statuses={1: failed})
    assert summary(plan.status)[1] == "Failed"
    assert backoff.remaining(plan.status, NOW) <= timedelta(0)
