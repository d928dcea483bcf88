"""The trace of a recovery in the status."""

from typing import Any

from ddp_operator.api.status import DDPJobStatus, RecoveryStatus
from ddp_operator.reconcile.plan import Plan
from ddp_wire.contract import AgentStatus, Timeline
from tests.operator.support import (
    NOW,
    active_job,
    after,
    all_pods,
    failed_word,
    last_failure,
    plan_for,
    pod,
    to_wire,
    word,
)


def at(seconds: float) -> float:
    return after(seconds).timestamp()


def times(start: float, **changes: Any) -> Timeline:
    """A node that takes 0.1 s for each part from `start` on."""
    parts = ("ordered", "cleared", "launched", "spawned", "joined", "stepped")
    given: dict[str, Any] = {name: at(start + 0.1 * i) for i, name in enumerate(parts)}
    return Timeline(**(given | changes))


def recovering(**status: Any) -> Any:
    recovery = RecoveryStatus(attempt=2, fault="rank 0 failed", time=NOW, decided_milliseconds=150)
    given = {"last_recovery": recovery, "last_failure": last_failure()}
    return active_job(attempt=2, formed=False, status=given | status)


def seen(words: dict[int, AgentStatus], **status: Any) -> Plan:
    job = recovering(**status)
    return plan_for(job, all_pods(job), now=after(9), words=words)


def trace(status: DDPJobStatus) -> RecoveryStatus:
    assert status.last_recovery is not None
    return status.last_recovery


def test_the_decision_opens_the_trace() -> None:
    job = active_job(status={"last_recovery": RecoveryStatus(attempt=1, time=after(-60))})
    failed = failed_word(0, signal="SIGKILL", at=at(-0.2))
    plan = plan_for(job, all_pods(job), words={0: failed})
    opened = trace(plan.status)
    assert (opened.attempt, opened.decided_milliseconds) == (2, 200)
    assert opened.fault == "rank 0 on digits-0 was ended by SIGKILL"
    assert not opened.complete
    assert opened.summary is None


def test_a_lost_pod_is_decided_on_as_soon_as_the_api_server_tells() -> None:
    job = active_job()
    plan = plan_for(job, [pod(job, 0)])
    assert trace(plan.status).decided_milliseconds == 0


def test_the_trace_stays_open_until_every_node_has_done_an_update() -> None:
    late = times(0.6, stepped=None)
    words = {0: word(0, attempt=2, timeline=times(0.4)), 1: word(1, attempt=2, timeline=late)}
    assert not trace(seen(words).status).complete
    assert not trace(seen({0: words[0]}).status).complete


def test_each_part_is_over_when_the_last_node_is_through_with_it() -> None:
    first = times(0.2, noticed=at(0.02))
    second = times(0.5, noticed=at(0.05))
    words = {0: word(0, attempt=2, timeline=first), 1: word(1, attempt=2, timeline=second)}
    plan = seen(words)
    done = trace(plan.status)
    assert to_wire(plan.status)["lastRecovery"] == {
        "attempt": 2,
        "fault": "rank 0 failed",
        "time": "2026-03-01T12:00:00Z",
        "summary": "1.0 s: noticed 0.02, decided 0.15, told 0.50, torn down 0.60, forked 0.70, "
        "rendezvous 0.80, process group 0.90, first step 1.00",
        "noticedMilliseconds": 20,
        "decidedMilliseconds": 150,
        "toldMilliseconds": 500,
        "tornDownMilliseconds": 600,
        "forkedMilliseconds": 700,
        "rendezvousMilliseconds": 800,
        "processGroupMilliseconds": 900,
        "firstStepMilliseconds": 1000,
    }
    told = [event.message for event in plan.events if event.reason == "Recovered"]
    assert told == [f"attempt 2 goes on after {done.summary}"]


def test_a_part_that_ran_beside_others_never_ends_before_them() -> None:
    """A node that fell was torn down before it was told; a clock may be behind."""
    early = times(0.4, cleared=at(0.05), stepped=at(-3.0))
    words = {i: word(i, attempt=2, timeline=early) for i in (0, 1)}
    done = trace(seen(words).status)
    assert done.torn_down_milliseconds == done.told_milliseconds == 400
    assert done.first_step_milliseconds == done.process_group_milliseconds == 800


def test_a_new_container_has_nothing_to_tear_down() -> None:
    fresh = times(0.4, cleared=None)
    words = {i: word(i, attempt=2, timeline=fresh) for i in (0, 1)}
    assert trace(seen(words).status).torn_down_milliseconds == 400


def test_a_closed_trace_is_told_once() -> None:
    words = {i: word(i, attempt=2, timeline=times(0.4)) for i in (0, 1)}
    closed = seen(words).status.last_recovery
    again = seen(words, last_recovery=closed)
    assert again.status.last_recovery == closed
    assert [event.reason for event in again.events if event.reason == "Recovered"] == []


def test_words_of_another_attempt_do_not_close_the_trace() -> None:
    words = {i: word(i, attempt=1, timeline=times(0.4)) for i in (0, 1)}
    assert not trace(seen(words).status).complete
