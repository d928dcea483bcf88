"""Tests of the trace of a recovery in the status."""

from typing import Any

from ddp_operator.api.recovery import RecoveryStatus
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.reconcile.plan import Plan
from ddp_wire.messages import AgentStatus, Timeline
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    failed_status,
    last_failure,
    plan_for,
    pod,
    to_wire,
)


def at(seconds: float) -> float:
    return after(seconds).timestamp()


def times(start: float, **changes: Any) -> Timeline:
    """Return the timeline of a node that takes 0.1 s for each part from `start` on."""
    parts = ("ordered", "cleared", "launched", "spawned", "joined", "stepped")
    given: dict[str, Any] = {name: at(start + 0.1 * i) for i, name in enumerate(parts)}
    return Timeline(**(given | changes))


def recovering(**status: Any) -> Any:
    recovery = RecoveryStatus(attempt=2, fault="rank 0 failed", time=NOW, decided_milliseconds=150)
    given = {"last_recovery": recovery, "last_failure": last_failure()}
    return active_job(attempt=2, formed=False, status=given | status)


def seen(statuses: dict[int, AgentStatus], **status: Any) -> Plan:
    job = recovering(**status)
    return plan_for(job, all_pods(job), now=after(9), statuses=statuses)


def trace(status: DDPJobStatus) -> RecoveryStatus:
    assert status.last_recovery is not None
    return status.last_recovery


def test_decision_starts_the_recovery_trace() -> None:
    job = active_job(status={"last_recovery": RecoveryStatus(attempt=1, time=after(-60))})
    failed = failed_status(0, signal="SIGKILL", at=at(-0.2))
    plan = plan_for(job, all_pods(job), statuses={0: failed})
    started = trace(plan.status)
    assert (started.attempt, started.decided_milliseconds) == (2, 200)
    assert started.fault == "rank 0 on digits-0 was killed by SIGKILL"
    assert not started.complete
    assert started.summary is None


def test_recovery_from_a_lost_pod_has_no_delay_before_the_decision() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)])
    assert trace(plan.status).decided_milliseconds == 0


def test_recovery_trace_is_incomplete_until_every_node_has_done_an_update() -> None:
    late = times(0.6, stepped=None)
    statuses = {
        0: agent_status(0, attempt=2, timeline=times(0.4)),
        1: agent_status(1, attempt=2, timeline=late),
    }
    assert not trace(seen(statuses).status).complete
    assert not trace(seen({0: statuses[0]}).status).complete


def test_each_part_of_a_recovery_ends_when_the_last_node_has_finished_it() -> None:
    first = times(0.2, noticed=at(0.02))
    second = times(0.5, noticed=at(0.05))
    statuses = {
        0: agent_status(0, attempt=2, timeline=first),
        1: agent_status(1, attempt=2, timeline=second),
    }
    plan = seen(statuses)
    assert to_wire(plan.status)["lastRecovery"] == {
        "attempt": 2,
        "fault": "rank 0 failed",
        "time": "2026-03-01T12:00:00Z",
        "summary": "1.0 s: noticed 0.02, decided 0.15, ordered 0.50, torn down 0.60, forked 0.70, "
        "rendezvous 0.80, process group 0.90, first step 1.00",
        "noticedMilliseconds": 20,
        "decidedMilliseconds": 150,
        "orderedMilliseconds": 500,
        "tornDownMilliseconds": 600,
        "forkedMilliseconds": 700,
        "rendezvousMilliseconds": 800,
        "processGroupMilliseconds": 900,
        "firstStepMilliseconds": 1000,
    }
    messages = [event.message for event in plan.events if event.reason == "Recovered"]
    assert messages == [
        "attempt 2 trains 1.0 s after the fault; status.lastRecovery shows each part"
    ]


def test_part_of_a_recovery_never_ends_before_an_earlier_part() -> None:
    """A failed node is torn down before it gets its order, and its clock may be behind."""
    early = times(0.4, cleared=at(0.05), stepped=at(-3.0))
    statuses = {i: agent_status(i, attempt=2, timeline=early) for i in (0, 1)}
    done = trace(seen(statuses).status)
    assert done.torn_down_milliseconds == done.ordered_milliseconds == 400
    assert done.first_step_milliseconds == done.process_group_milliseconds == 800


def test_new_container_has_no_tear_down_time_in_the_recovery_trace() -> None:
    fresh = times(0.4, cleared=None)
    statuses = {i: agent_status(i, attempt=2, timeline=fresh) for i in (0, 1)}
    assert trace(seen(statuses).status).torn_down_milliseconds == 400


def test_complete_recovery_trace_emits_one_event() -> None:
    statuses = {i: agent_status(i, attempt=2, timeline=times(0.4)) for i in (0, 1)}
    complete = seen(statuses).status.last_recovery
    again = seen(statuses, last_recovery=complete)
    assert again.status.last_recovery == complete
    assert [event.reason for event in again.events if event.reason == "Recovered"] == []


def test_reports_of_another_attempt_do_not_complete_the_recovery_trace() -> None:
    statuses = {i: agent_status(i, attempt=1, timeline=times(0.4)) for i in (0, 1)}
    assert not trace(seen(statuses).status).complete
