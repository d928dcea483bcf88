"""A cluster that was restored from a backup continues from the attempt that its agents run."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_operator.reconcile.plan import SetAttempt
from ddp_wire.messages import AgentStatus
from tests.operator.support import (
    UID,
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    finished_job,
    only,
    plan_for,
    summary,
)


def reports(attempt: int, **more: Any) -> dict[int, AgentStatus]:
    return {i: agent_status(i, attempt=attempt, job_uid=UID, **more) for i in (0, 1)}


def test_restored_status_takes_the_attempt_number_of_the_agents() -> None:
    job = active_job(attempt=2, formed=False)
    plan = plan_for(job, all_pods(job), statuses=reports(5), now=after(60))
    assert (plan.status.attempt, plan.status.restarts) == (5, 0)
    assert [(type(a), a.value) for a in only(plan.actions, SetAttempt)] == [(SetAttempt, "5")] * 2
    assert len(plan.actions) == 2
    assert next(event.reason for event in plan.events) == "AttemptRestored"


def test_run_that_completed_after_the_backup_is_not_repeated() -> None:
    job = active_job(attempt=2)
    done = [
        replace(
            one,
            phase="Succeeded",
            ready=False,
            termination=ended(
                0, final=agent_status(one.index, attempt=5, phase="Succeeded", job_uid=UID)
            ),
        )
        for one in all_pods(job)
    ]
    plan = plan_for(job, done, now=after(91))
    assert summary(plan.status)[:2] == ("True", "Completed")
    assert plan.status.attempt == 5


@pytest.mark.parametrize(
    ("attempt", "uid"),
    [(2, UID), (1, UID), (5, "another job"), (5, ""), (2**40, UID)],
    ids=["same", "lower", "another job", "no job", "no agent accepts it"],
)
def test_reports_of_other_jobs_or_older_attempts_do_not_change_the_attempt_number(
    attempt: int, uid: str
) -> None:
    job = active_job(attempt=2)
    found = {i: agent_status(i, attempt=attempt, job_uid=uid) for i in (0, 1)}
    plan = plan_for(job, all_pods(job), statuses=found)
    assert (plan.status.attempt, plan.events) == (2, ())


def test_finished_job_keeps_its_attempt_number() -> None:
    job = finished_job(succeeded=False)
    assert plan_for(job, all_pods(job), statuses=reports(5)).status.attempt == 1
