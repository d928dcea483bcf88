"""Tests of jobs whose edited spec the trainer refuses: they wait without a charge."""

from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from ddp_wire.contract import ExitCode
from ddp_wire.messages import Timeline
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    condition,
    failed_status,
    new_job,
    only,
    plan_for,
    reason,
    summary,
)

REFUSAL = "config: global_batch 32 must be a multiple of the world size 3"
STEPPED = Timeline(ordered=1.0, launched=2.0, stepped=3.0)


def edited(status: DDPJobStatus, **spec: Any) -> DDPJob:
    return new_job(**({"nodes": 2} | spec)).model_copy(update={"status": status})


def trained(**spec: Any) -> DDPJobStatus:
    """Return the status of a job of two nodes that has trained."""
    job = active_job(**spec)
    reports = {i: agent_status(i, timeline=STEPPED) for i in (0, 1)}
    return plan_for(job, all_pods(job), statuses=reports).status


def refusal(job: DDPJob) -> Plan:
    """Return the plan when the trainer refuses the job's current attempt."""
    attempt = job.status.attempt
    failed = failed_status(0, attempt=attempt, exit_code=ExitCode.BAD_INPUT, message=REFUSAL)
    return plan_for(job, all_pods(job), statuses={0: failed}, now=after(86460))


def scaled_up(**spec: Any) -> DDPJob:
    """Return a job of two nodes that has trained, in its first attempt with three nodes."""
    bigger = edited(trained(**spec), nodes=3, **spec)
    return bigger.model_copy(update={"status": plan_for(bigger, all_pods(bigger)).status})


def test_job_whose_new_size_is_refused_waits_without_a_charge() -> None:
    job = scaled_up(maxRestarts=0, maxInfrastructureRestarts=0, activeDeadlineSeconds=86401)
    job = job.model_copy(update={"status": job.status.model_copy(update={"start_time": after(80)})})
    plan = refusal(job)
    waits = "no budget is charged, and an edit of the job starts it again"
    message = f"rank 0 on digits-0 failed: {REFUSAL}; {waits}"
    assert summary(plan.status) == ("Unknown", "Invalid", message)
    assert {a.name for a in only(plan.actions, DeletePod)} == {p.name for p in all_pods(job)}
    assert (plan.status.restarts, plan.status.infrastructure_restarts) == (0, 0)
    assert plan.status.attempts[-1].reason == "Invalid"
    waiting = job.model_copy(update={"status": plan.status})
    again = plan_for(waiting, [], now=after(10 * 86400))
    assert (again.actions, again.requeue_seconds) == ((), None)
    assert reason(again.status) == "Invalid"
    assert again.status.next_action == "none: the operator waits until the spec is edited"


@pytest.mark.parametrize("nodes", [2, 4], ids=["scaled back", "another size"])
def test_next_edit_resumes_a_job_whose_spec_was_refused(nodes: int) -> None:
    waits = refusal(scaled_up()).status
    plan = plan_for(edited(waits, nodes=nodes), [], now=after(86500))
    assert (plan.status.attempt, reason(plan.status)) == (3, "Pending")
    assert plan.status.refused_spec_hash is None
    assert len(only(plan.actions, CreatePod)) == nodes
    assert plan.status.pods is not None
    assert plan.status.pods.nodes == nodes


def test_second_refused_edit_waits_for_the_next_edit() -> None:
    waits = refusal(scaled_up()).status
    other = edited(waits, nodes=5)
    started = other.model_copy(update={"status": plan_for(other, []).status})
    assert reason(refusal(started).status) == "Invalid"


def test_edit_that_is_refused_before_the_job_has_trained_waits_for_the_next_edit() -> None:
    starting = active_job(formed=False).status
    bigger = edited(starting, nodes=3)
    bigger = bigger.model_copy(update={"status": plan_for(bigger, []).status})
    assert reason(refusal(bigger).status) == "Invalid"


def test_command_that_ran_for_a_minute_counts_as_having_trained() -> None:
    job = active_job(command=["train.py"], task=None)
    assert plan_for(job, all_pods(job), now=after(59)).status.trained_spec_hash is None
    status = plan_for(job, all_pods(job), now=after(60)).status
    assert status.trained_spec_hash == job.spec_hash


def test_new_job_that_the_trainer_refuses_fails() -> None:
    assert summary(refusal(active_job(formed=False)).status)[:2] == ("False", "Failed")


def test_spec_that_has_already_trained_is_not_refused_later() -> None:
    """The input of the run may have changed since. For example, a data set may be gone."""
    job = scaled_up()
    reports = {i: agent_status(i, attempt=2, timeline=STEPPED) for i in range(3)}
    status = plan_for(job, all_pods(job), statuses=reports).status
    job = job.model_copy(update={"status": status})
    assert summary(refusal(job).status)[:2] == ("False", "Failed")


def test_resumption_tries_a_refused_spec_again() -> None:
    waits = refusal(scaled_up()).status
    stopped = plan_for(edited(waits, nodes=3, suspend=True), []).status
    assert stopped.is_true(ConditionType.SUSPENDED)
    plan = plan_for(edited(stopped, nodes=3), [])
    assert (plan.status.attempt, len(only(plan.actions, CreatePod))) == (3, 3)


def test_wait_for_an_edit_is_charged_to_the_bucket_suspended() -> None:
    job = scaled_up()
    waits = refusal(job).status
    later = plan_for(edited(waits, nodes=2), [], now=after(86460 + 3600)).status
    assert waits.goodput is not None
    assert later.goodput is not None
    assert later.goodput.suspended_milliseconds == 3_600_000
    assert waits.condition(ConditionType.SUCCEEDED) != condition(ConditionType.SUCCEEDED, "True")
