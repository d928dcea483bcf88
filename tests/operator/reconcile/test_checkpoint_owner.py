"""A job waits for another job that owns the directory of its checkpoints."""

import itertools
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.reconcile.checkpoint_owner import Claimant, first_in_line
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.plan import CreatePod, DeletePod, Plan
from tests.operator.support import (
    DEFAULTS,
    active_job,
    after,
    all_pods,
    condition,
    finished_job,
    new_job,
    only,
    plan_for,
    reason,
    summary,
    with_status,
    world,
)

SHARED: dict[str, Any] = {"checkpoint": {"claimName": "shared", "path": "runs/a"}, "nodes": 2}
MESSAGE = (
    "the directory shared/runs/a of the checkpoints is in use by the DDPJob first: this job starts"
    " when first has ended; delete first if it is not needed, or change checkpoint.path of this job"
)


def waiting(job: DDPJob, pods: Any = (), *, at: float = 0, owner: str | None = "first") -> Plan:
    seen = world(job, pods, now=after(at), service=False)
    return decide(seen.__class__(**{**vars(seen), "checkpoint_owner": owner}), DEFAULTS)


def test_second_job_of_a_checkpoint_directory_waits_and_names_the_owner() -> None:
    plan = waiting(new_job(**SHARED))
    assert plan.actions == ()
    assert (plan.status.attempt, plan.status.ready, plan.requeue_seconds) == (0, "0/2", 10.0)
    assert summary(plan.status) == ("Unknown", "Pending", MESSAGE)
    found = plan.status.condition(ConditionType.PODS_READY)
    assert found is not None
    assert (found.status, found.reason, found.message) == ("False", "CheckpointPathInUse", MESSAGE)
    assert [(e.type, e.reason, e.message) for e in plan.events] == [
        ("Warning", "CheckpointPathInUse", MESSAGE)
    ]
    assert plan.status.next_action == "none: the operator waits until the DDPJob first has ended"


def test_one_event_and_one_write_however_long_the_job_waits() -> None:
    job = new_job(**SHARED)
    job = with_status(job, **dict(waiting(job).status))
    for at in (10, 20, 86_400):
        plan = waiting(job, at=at)
        assert (plan.status, plan.events, plan.actions) == (job.status, (), ())
    other = waiting(job, at=30, owner="third")
    assert "by the DDPJob third" in summary(other.status)[2]
    assert other.events == ()


def test_job_starts_when_the_owner_has_ended_and_its_deadlines_did_not_run() -> None:
    job = new_job(activeDeadlineSeconds=60, startupDeadlineSeconds=60, **SHARED)
    job = with_status(job, **dict(waiting(job).status))
    plan = waiting(job, at=86_400, owner=None)
    assert (plan.status.attempt, plan.status.start_time) == (1, after(86_400))
    assert len(only(plan.actions, CreatePod)) == 2
    assert plan.status.pods is not None
    assert plan.status.pods.checkpoint_directory == "shared/runs/a"
    assert plan.status.goodput is not None
    assert plan.status.goodput.queued_milliseconds == 86_400_000


def test_job_that_trains_continues_whoever_owns_its_directory() -> None:
    """Two such jobs may have run before an upgrade of the operator."""
    job = active_job(**SHARED)
    plan = waiting(job, all_pods(job))
    assert reason(plan.status) == "Running"
    assert not only(plan.actions, DeletePod)


def test_edit_to_a_directory_in_use_ends_the_attempt_and_its_pods() -> None:
    job = active_job(attempt=3, nodes=2, checkpoint={"claimName": "shared", "path": "runs/b"})
    pods = all_pods(job)
    edited = with_status(new_job(**SHARED), **dict(job.status))
    plan = waiting(edited, pods)
    assert [a.name for a in only(plan.actions, DeletePod)] == ["digits-0", "digits-1"]
    assert not only(plan.actions, CreatePod)
    assert summary(plan.status) == ("Unknown", "Pending", MESSAGE)
    assert not plan.status.is_true(ConditionType.RENDEZVOUSED)
    assert [(a.number, a.reason) for a in plan.status.attempts] == [(3, "SpecChanged")]
    gone = with_status(edited, **dict(plan.status))
    assert waiting(gone, at=10).actions == ()
    started = waiting(gone, at=20, owner=None).status
    assert (started.attempt, started.free_restarts, started.restarts) == (4, 1, 0)
    assert started.pods is not None
    assert started.pods.checkpoint_directory == "shared/runs/a"


def test_resumed_job_that_waits_is_no_longer_suspended() -> None:
    created = new_job(suspend=True, **SHARED)
    stopped = plan_for(created).status
    plan = waiting(with_status(new_job(**SHARED), **dict(stopped)))
    assert reason(plan.status) == "Pending"
    assert not plan.status.is_true(ConditionType.SUSPENDED)


@pytest.mark.parametrize(
    ("job", "shown"),
    [(new_job(suspend=True, **SHARED), "Suspended"), (finished_job(succeeded=True), "Completed")],
    ids=["suspended", "finished"],
)
def test_suspended_or_finished_job_waits_for_no_owner(job: DDPJob, shown: str) -> None:
    assert reason(waiting(job).status) == shown


def test_owner_is_the_started_job_then_the_oldest_then_the_lowest_uid() -> None:
    ranked = [
        Claimant("late", "u4", "2026-03-01T12:09:00Z", started=True),
        Claimant("old", "u9", "2026-03-01T12:00:00Z", started=False),
        Claimant("same-a", "u1", "2026-03-01T12:05:00Z", started=False),
        Claimant("same-b", "u2", "2026-03-01T12:05:00Z", started=False),
    ]
    for order in itertools.permutations(ranked):
        left = list(order)
        for expected in ranked:
            assert first_in_line(left) == expected
            left.remove(expected)


def test_condition_of_a_waiting_job_is_replaced_once_it_starts() -> None:
    job = new_job(**SHARED)
    job = with_status(job, **dict(waiting(job).status))
    status = waiting(job, owner=None).status
    assert status.condition(ConditionType.PODS_READY) == condition(
        ConditionType.PODS_READY, "False", "NotReady"
    ).model_copy(update={"message": "0 of 2 pods are training"})
