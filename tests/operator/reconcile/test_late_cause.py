"""Tests of a pod whose end is reported late and changes the cause and the charged budget."""

from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause
from ddp_operator.reconcile.plan import Plan
from ddp_wire.messages import AgentStatus
from tests.operator.support import (
    active_job,
    after,
    agent_status,
    all_pods,
    ended,
    failed_status,
    plan_for,
    pod,
    summary,
)


def blaming(**spec: Any) -> DDPJob:
    """Return a job in attempt 2, whose attempt 1 was charged to the silent pod 1."""
    job = active_job(**spec)
    peers = {0: failed_status(0, message="Connection closed by peer", secondary=True)}
    plan = plan_for(job, all_pods(job), statuses=peers, silent=[1])
    assert (plan.status.last_failure or pytest.fail("no failure")).reason == "PeerLost"
    assert (plan.status.infrastructure_restarts, plan.status.restarts) == (1, 0)
    return job.model_copy(update={"status": plan.status})


def late(job: DDPJob, **fields: Any) -> Plan:
    """Return the plan when the end of pod 1 becomes known in attempt 2."""
    given = {"phase": "Failed", "ready": False, "first_attempt": "1"}
    dead = pod(job, 1, **(given | fields))
    waits: dict[int, AgentStatus] = {0: agent_status(0, attempt=2, phase="Waiting")}
    return plan_for(job, [pod(job, 0, ready=False), dead], statuses=waits, now=after(3))


OOM = {"termination": ended(137, reason="OOMKilled")}


def test_late_report_of_a_memory_limit_corrects_cause_and_budget() -> None:
    plan = late(blaming())
    assert plan.status.infrastructure_restarts == 1
    plan = late(blaming(), **OOM)
    status, failure = plan.status, plan.status.last_failure
    assert failure is not None
    assert (failure.reason, failure.cause, failure.attempt) == ("OOMKilled", Cause.APPLICATION, 1)
    assert (status.infrastructure_restarts, status.restarts) == (0, 1)
    assert len(status.recent_failures) == 1
    assert [(a.reason, a.cause) for a in status.attempts] == [("OOMKilled", Cause.APPLICATION)]
    assert [event.reason for event in plan.events] == ["OOMKilled"]
    again = late(blaming().model_copy(update={"status": status}), **OOM)
    assert (again.status.restarts, again.status.attempt) == (1, 2)


def test_late_report_of_an_exception_corrects_the_cause() -> None:
    final = failed_status(1, attempt=1, message="ValueError: no such file")
    plan = late(blaming(), termination=ended(1, final=final))
    failure = plan.status.last_failure
    assert failure is not None
    assert failure.message == "rank 1 on digits-1 failed: ValueError: no such file"


def test_job_without_restarts_fails_with_the_late_cause() -> None:
    status = late(blaming(maxRestarts=0), **OOM).status
    message = "digits-1 ran out of memory (attempt 1 is not retried: maxRestarts is 0)"
    assert summary(status) == ("False", "Failed", message.replace("attempt 1", "attempt 2"))


@pytest.mark.parametrize(
    "fields",
    [
        {"termination": ended(137)},
        {"termination": ended(1, final=failed_status(1, secondary=True))},
        {**OOM, "first_attempt": ""},
        {"phase": "Running"},
    ],
    ids=["killed by the host", "lost a peer, too", "unknown age", "runs"],
)
def test_later_pod_state_without_a_new_cause_keeps_the_recorded_cause(
    fields: dict[str, Any],
) -> None:
    status = late(blaming(), **fields).status
    assert (status.last_failure or pytest.fail("no failure")).reason == "PeerLost"
    assert (status.infrastructure_restarts, status.restarts) == (1, 0)


def test_end_of_a_pod_in_the_new_attempt_is_a_separate_fault() -> None:
    status = late(blaming(), **OOM, first_attempt="2").status
    assert (status.attempt, status.infrastructure_restarts, status.restarts) == (3, 1, 1)
