"""Tests of the time in which a gate, a queue or a quota holds the pods. No deadline counts it."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from ddp_operator.api.init import init_hash
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus, QueueStatus
from ddp_operator.builders import names
from ddp_operator.reconcile import init_state
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.pod_view import PodView
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    all_pods,
    failed_status,
    new_job,
    plan_for,
    pod,
    summary,
    to_wire,
    with_status,
    world,
)

GATED: dict[str, Any] = {
    "phase": "Pending",
    "ready": False,
    "node": None,
    "ip": None,
    "waiting": "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates",
}
UNSCHEDULABLE = GATED | {"waiting": "Unschedulable: 0/3 nodes are available: 3 Insufficient gpu."}
QUOTA = 'pods "digits-0" is forbidden: exceeded quota: gpus, requested: 1, used: 8, limited: 8'
FETCH: dict[str, Any] = {"name": "fetch", "command": ["fetch"]}
DEADLINES: dict[str, Any] = {"startupDeadlineSeconds": 600, "activeDeadlineSeconds": 1000}


def seen(job: DDPJob, at: float, held: str | None) -> Plan:
    """Return the plan while something holds the pods, or while they run and have not joined."""
    match held:
        case "gate":
            return plan_for(job, all_pods(job, **GATED), now=after(at))
        case "one gate":
            pods = [pod(job, 0, ready=False), pod(job, 1, **GATED)]
            return plan_for(job, pods, now=after(at))
        case "quota":
            return plan_for(job, (), now=after(at), blocked=QUOTA)
        case "one pod in the quota":
            return plan_for(job, [pod(job, 0, ready=False)], now=after(at), blocked=QUOTA)
        case "no room":
            return plan_for(job, all_pods(job, **UNSCHEDULABLE), now=after(at))
        case "not this job's":
            blocked = "Service digits exists already and is not this job's"
            return plan_for(job, (), now=after(at), blocked=blocked)
        case _:
            return plan_for(job, all_pods(job, ready=False), now=after(at))


def look(job: DDPJob, at: float, held: str | None) -> DDPJob:
    """Return the job with the status after one reconcile."""
    return with_status(job, **dict(seen(job, at, held).status))


def queue(status: DDPJobStatus) -> tuple[datetime | None, int, int]:
    assert status.queue is not None
    return status.queue.since, status.queue.attempt_seconds, status.queue.job_seconds


HOLDS = ("gate", "one gate", "quota", "one pod in the quota")


@pytest.mark.parametrize("held", HOLDS)
def test_no_deadline_passes_while_a_gate_or_a_quota_holds_the_pods(held: str) -> None:
    job = look(active_job(formed=False, **DEADLINES), 5, held)
    assert queue(job.status) == (after(5), 0, 0)
    for day in range(1, 30):
        plan = seen(job, 86_400 * day, held)
        assert not is_finished(plan.status)
        assert plan.status.queue == job.status.queue, "the time that passes causes no write"


@pytest.mark.parametrize("held", HOLDS)
@pytest.mark.parametrize(("at", "ends"), [(86_599, False), (86_600, True)])
def test_startup_deadline_continues_when_the_hold_ends(held: str, at: float, ends: bool) -> None:
    job = look(active_job(formed=False, **DEADLINES), 100, held)
    job = look(job, 86_100, None)
    assert queue(job.status) == (None, 86_000, 86_000)
    plan = seen(job, at, None)
    assert is_finished(plan.status) is ends
    if ends:
        assert [e.reason for e in plan.events] == ["StartupDeadlineExceeded"]
        limit = "startupDeadlineSeconds (600), not counting the 86000 s in which a gate, a queue"
        assert limit in summary(plan.status)[2]


@pytest.mark.parametrize(("at", "ends"), [(86_999, False), (87_000, True)])
def test_active_deadline_excludes_the_holds_of_all_attempts(at: float, ends: bool) -> None:
    job = look(active_job(formed=False, activeDeadlineSeconds=1000), 100, "quota")
    job = look(job, 80_100, None)
    joined = plan_for(job, all_pods(job), now=after(80_110)).status
    job = with_status(job, **dict(joined))
    failed = plan_for(job, all_pods(job), statuses={0: failed_status(0)}, now=after(80_200))
    job = with_status(job, **dict(failed.status))
    assert (job.status.attempt, queue(job.status)) == (2, (None, 0, 80_000))
    job = look(look(job, 80_300, "gate"), 86_300, None)
    assert queue(job.status) == (None, 6_000, 86_000)
    plan = seen(job, at, None)
    assert is_finished(plan.status) is ends
    if ends:
        assert [e.reason for e in plan.events] == ["DeadlineExceeded"]


def test_attempt_that_begins_during_a_hold_excludes_only_its_own_part_of_it() -> None:
    job = look(active_job(formed=False, **DEADLINES), 100, "gate")
    edited = with_status(new_job(nodes=2, image="other:1", **DEADLINES), **dict(job.status))
    job = look(edited, 1_100, "gate")
    assert (job.status.attempt, queue(job.status)) == (2, (None, 0, 1_000))
    job = look(job, 1_101, "gate")
    assert queue(job.status) == (after(1_101), 0, 1_000)


@pytest.mark.parametrize("held", ["no room", "not this job's", None])
def test_wait_for_room_counts_against_the_startup_deadline(held: str | None) -> None:
    job = look(active_job(formed=False, **DEADLINES), 5, held)
    assert job.status.queue is None
    plan = seen(job, 600, held)
    assert [e.reason for e in plan.events] == ["StartupDeadlineExceeded"]


def test_quota_that_holds_one_pod_of_a_training_job_is_no_hold() -> None:
    job = active_job(**DEADLINES)
    assert plan_for(job, all_pods(job), blocked=QUOTA, now=after(5)).status.queue is None


def test_suspension_and_resumption_reset_the_time_of_the_holds() -> None:
    job = look(look(active_job(formed=False, **DEADLINES), 100, "gate"), 900, None)
    suspended = with_status(new_job(nodes=2, suspend=True, **DEADLINES), **dict(job.status))
    status = plan_for(suspended, now=after(901)).status
    assert status.queue is None
    resumed = with_status(new_job(nodes=2, **DEADLINES), **dict(status))
    assert plan_for(resumed, now=after(2000)).status.queue is None


def test_edit_of_the_init_steps_keeps_the_time_of_the_holds() -> None:
    held = QueueStatus(attempt_seconds=36_000, job_seconds=36_000)
    old = with_status(active_job(init=[FETCH], **DEADLINES), queue=held)
    old = with_status(old, init=init_state.first_try(old, 1, NOW))
    job = new_job(init=[FETCH | {"command": ["fetch", "v2"]}], **DEADLINES)
    job = job.model_copy(update={"status": old.status})
    for at in (36_300, 36_301):
        status = plan_for(job, (), now=after(at)).status
        assert not is_finished(status), summary(status)
        assert status.queue == QueueStatus(job_seconds=36_000)
        job = job.model_copy(update={"status": status})
    # The attempt that follows the steps goes on with the same time.
    job = with_status(job, init=init_state.first_try(job, 1, NOW))
    status = plan_for(job, (), now=after(36_400)).status
    assert (status.attempt, status.queue) == (2, QueueStatus(job_seconds=36_000))


@pytest.mark.parametrize("held", ["gate", "quota"])
def test_deadline_does_not_count_a_hold_of_an_init_step(held: str) -> None:
    job = with_status(new_job(init=[FETCH], **DEADLINES), start_time=NOW)
    job = with_status(job, init=init_state.first_try(job, 0, NOW))
    name = names.init_pod_name(job, "fetch", 1)
    spec_hash = init_hash(job.spec.init or [])
    init_pod = PodView(
        uid="uid", name=name, index=-1, init_step="fetch", spec_hash=spec_hash, **GATED
    )
    gated = {"init_pods": (init_pod,)} if held == "gate" else {"blocked": QUOTA}

    def status_at(seconds: float, **fields: Any) -> DDPJobStatus:
        return decide(replace(world(job, now=after(seconds)), **fields), DEFAULTS).status

    for seconds in (100, 5000):
        job = job.model_copy(update={"status": status_at(seconds, **gated)})
        assert not is_finished(job.status), summary(job.status)
    job = job.model_copy(update={"status": status_at(5100)})
    assert job.status.queue == QueueStatus(attempt_seconds=5000, job_seconds=5000)
    assert not is_finished(status_at(5999))
    assert is_finished(status_at(6001))


def test_finished_job_has_no_hold() -> None:
    job = look(active_job(formed=False, **DEADLINES), 100, "gate")
    plan = plan_for(job, all_pods(job, phase="Succeeded"), now=after(200))
    assert (is_finished(plan.status), queue(plan.status)) == (True, (None, 100, 100))


def test_clock_that_was_set_back_during_a_hold_changes_no_deadline() -> None:
    job = look(active_job(formed=False, **DEADLINES), 100, "gate")
    assert queue(look(job, 50, None).status) == (None, 0, 0)
    assert not is_finished(seen(job, 50, "gate").status)


def test_short_holds_sum_up_to_their_whole_time() -> None:
    """Each of 20 holds is shorter than the second to which the status is exact."""
    job = active_job(formed=False, **DEADLINES)
    for number in range(20):
        job = look(job, 100 + 0.7 * number, "gate")
        job = look(job, 100 + 0.7 * number + 0.6, None)
    assert 11 <= queue(job.status)[2] <= 14


@pytest.mark.parametrize("held", HOLDS)
def test_time_of_a_hold_is_charged_to_the_bucket_queued(held: str) -> None:
    job = look(active_job(formed=False, **DEADLINES), 100, held)
    pods = all_pods(job, ready=False, scheduled_at=after(86_100))
    ledger = plan_for(job, pods, now=after(86_102)).status.goodput
    assert ledger is not None
    assert (ledger.queued_milliseconds, ledger.starting_milliseconds) == (86_100_000, 2_000)


def test_job_is_requeued_no_later_than_its_deadline_after_a_hold() -> None:
    job = active_job(formed=False, **DEADLINES)
    done = with_status(job, queue=QueueStatus(attempt_seconds=100, job_seconds=100))
    assert seen(done, 699.5, None).requeue_seconds == 0.5
    job = active_job(activeDeadlineSeconds=1000)
    done = with_status(job, queue=QueueStatus(attempt_seconds=0, job_seconds=100))
    assert plan_for(done, all_pods(done), now=after(1099.5)).requeue_seconds == 0.5


def test_status_has_the_documented_fields_of_a_hold() -> None:
    sent = to_wire(look(active_job(formed=False), 5, "gate").status)
    assert sent["queue"] == {"since": "2026-03-01T12:00:05Z", "attemptSeconds": 0, "jobSeconds": 0}
    kinds = {c["type"]: c["reason"] for c in sent["conditions"]}
    assert kinds[ConditionType.PODS_READY] == "SchedulingGated"
