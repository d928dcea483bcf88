"""The goodput ledger: each millisecond of a job is in exactly one bucket."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_operator.api.goodput import Bucket, CountedStatus, GoodputStatus
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import AttemptStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.goodput import advance
from ddp_operator.reconcile.ledger import Ledger
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.training import repeated_share, repeated_steps
from ddp_operator.reconcile.world import World
from ddp_wire.messages import AgentStatus, Heartbeat, RankPhase, TrainingTimes
from tests.operator.reconcile.test_decide_properties import worlds
from tests.operator.support import (
    DEFAULTS,
    NOW,
    active_job,
    after,
    agent_status,
    all_pods,
    condition,
    finished_job,
    last_failure,
    new_job,
    with_status,
    world,
)


def ledger_of(status: DDPJobStatus) -> dict[str, int]:
    """Return the buckets that are not empty, in milliseconds."""
    assert status.goodput is not None
    found = {bucket.value: status.goodput.milliseconds(bucket) for bucket in Bucket}
    return {name: value for name, value in found.items() if value}


def total(status: DDPJobStatus) -> int:
    return sum(ledger_of(status).values())


def started(job: DDPJob, **fields: int) -> DDPJob:
    """Return the job with a ledger."""
    return with_status(job, goodput=GoodputStatus(**fields))


def trained(
    step: int,
    *,
    joined: float = 2,
    first: float | None = 3,
    at: float = 10,
    times: tuple[float, float, float] | None = (6, 0, 0),
    attempt: int = 1,
    measured: int | None = None,
    **fields: Any,
) -> dict[int, AgentStatus]:
    """Return the report of node 0's agent, with times in seconds after NOW.

    `measured` is the step at which the times were measured, if it is older than the heartbeat's.
    """
    found = None
    if times is not None:
        training, waits, checkpoints = times
        found = TrainingTimes(
            step=step if measured is None else measured,
            training_seconds=training,
            data_wait_seconds=waits,
            checkpoint_seconds=checkpoints,
        )
    rank = Heartbeat(
        attempt=attempt,
        rank=0,
        local_rank=0,
        phase=fields.pop("phase", RankPhase.TRAINING),
        step=step,
        at=after(at).timestamp(),
        joined_at=after(joined).timestamp(),
        first_step_at=None if first is None else after(first).timestamp(),
        training_times=found,
        **fields,
    )
    return {0: agent_status(0, attempt=attempt, ranks=[rank])}


def charged(
    job: DDPJob,
    seconds: float,
    change: Mapping[str, Any] | None = None,
    *,
    statuses: Mapping[int, AgentStatus] | None = None,
    **pods: Any,
) -> DDPJobStatus:
    """Return the status after a write of these fields, some seconds after NOW."""
    seen = world(job, all_pods(job, **pods), now=after(seconds), statuses=statuses)
    return advance(seen, job.status.model_copy(update=dict(change or {})))


def lost(reason: str = "RankFailed", at: float = 10, attempt: int = 1) -> dict[str, Any]:
    """Return the status fields that a fault changes when it ends an attempt."""
    failure = last_failure(attempt, reason=reason, time=after(at))
    return {"attempt": attempt + 1, "last_failure": failure}


STARTING = active_job(formed=False)
TRAINING = active_job()
SECOND = active_job(attempt=2, formed=False)
SUSPENDED = {"conditions": [condition(ConditionType.SUCCEEDED, "Unknown", "Suspended")]}
ENDED = AttemptStatus(number=1, end_time=NOW, reason="Suspended")


def test_goodput_counts_the_job_as_queued_until_its_pods_have_a_node() -> None:
    job = new_job(nodes=2)
    assert ledger_of(charged(job, 4)) == {"queued": 4000}
    waiting = charged(started(STARTING, queued_milliseconds=1000), 5, phase="Pending", node=None)
    assert ledger_of(waiting) == {"queued": 5000}
    scheduled = charged(started(STARTING), 5, scheduled_at=after(3))
    assert ledger_of(scheduled) == {"queued": 3000, "starting": 2000}


def test_first_attempt_is_charged_to_starting_then_restoring_then_training() -> None:
    found = charged(started(STARTING), 10, statuses=trained(7))
    assert ledger_of(found) == {"starting": 2000, "restoring": 1000, "training": 6000}
    assert found.goodput is not None
    assert found.goodput.counted == CountedStatus(step=7, training_milliseconds=6000)
    assert found.goodput.percent == "66.7%"


def test_attempt_without_a_first_update_is_charged_to_restoring() -> None:
    found = charged(started(STARTING), 10, statuses=trained(0, first=None, times=None))
    assert ledger_of(found) == {"starting": 2000, "restoring": 8000}


def test_time_after_the_newest_update_is_charged_with_the_next_report() -> None:
    known = GoodputStatus(
        training_milliseconds=5000, counted=CountedStatus(step=5, training_milliseconds=4000)
    )
    job = with_status(TRAINING, goodput=known)
    assert total(charged(job, 60, statuses=trained(5, times=(4, 0, 0)))) == 5000
    found = charged(job, 60, statuses=trained(9, times=(7, 1, 2)))
    assert ledger_of(found) == {"training": 8000, "data_wait": 1000, "checkpoint_stall": 2000}


@pytest.mark.parametrize("spec", [{}, {"command": ["python", "train.py"]}], ids=["task", "command"])
def test_attempt_without_reported_times_is_charged_to_training(spec: dict[str, Any]) -> None:
    job = started(active_job(**spec), starting_milliseconds=1000)
    assert ledger_of(charged(job, 60)) == {"starting": 1000, "training": 59000}


def test_time_from_a_fault_on_is_charged_to_recovering() -> None:
    job = started(TRAINING, starting_milliseconds=3000)
    found = charged(job, 12, lost(at=10.5), statuses=trained(7, at=10))
    assert ledger_of(found) == {"starting": 3000, "training": 7500, "recovering": 1500}
    assert found.goodput is not None
    assert (found.goodput.reached_step, found.goodput.counted) == (7, None)
    late = charged(job, 60, lost("PodLost", at=60), statuses=trained(7, at=10))
    assert ledger_of(late)["recovering"] == 50_000, "no report shows training after 10 s"
    blind = charged(job, 60, lost("PodLost", at=50))
    assert ledger_of(blind) == {"starting": 3000, "training": 47_000, "recovering": 10_000}


def test_hang_is_charged_from_the_last_progress_to_its_confirmation() -> None:
    job = started(TRAINING, starting_milliseconds=3000)
    found = charged(job, 45, lost("Hung", at=10), statuses=trained(7, at=10))
    assert ledger_of(found) == {"starting": 3000, "training": 7000, "hang": 35_000}


def test_next_attempt_is_charged_to_recovering_until_its_ranks_have_joined() -> None:
    found = charged(started(SECOND), 10, statuses=trained(1, times=(0, 0, 0), attempt=2))
    assert ledger_of(found) == {"recovering": 2000, "restoring": 1000}
    resumed = with_status(started(SECOND), attempts=[ENDED])
    assert ledger_of(charged(resumed, 1)) == {"starting": 1000}


def test_report_across_the_reached_step_is_split_into_redone_and_training() -> None:
    known = GoodputStatus(recovering_milliseconds=3000, reached_step=15, redone_steps=2)
    job = with_status(active_job(attempt=2), goodput=known)
    report = trained(18, times=(6, 2, 1), attempt=2, resumed_from=10)
    found = charged(job, 60, statuses=report)
    assert ledger_of(found) == {
        "recovering": 3000,
        "training": 2250,
        "data_wait": 750,
        "redone": 5000,
        "checkpoint_stall": 1000,
    }
    assert found.goodput is not None
    assert found.goodput.redone_steps == 7


def test_updates_of_a_command_that_starts_from_the_beginning_are_redone() -> None:
    """A command that uses `ddp_trainer.report` reports steps, but no times."""
    known = GoodputStatus(recovering_milliseconds=3000, reached_step=20)
    job = with_status(active_job(attempt=2, command=["python", "t.py"]), goodput=known)
    begun = trained(10, times=None, attempt=2, resumed_from=0)
    again = charged(job, 13, statuses=begun)
    assert ledger_of(again) == {"recovering": 3000, "redone": 10_000}
    later = job.model_copy(update={"status": again})
    further = charged(later, 33, statuses=trained(30, times=None, attempt=2, resumed_from=0))
    assert ledger_of(further) == {"recovering": 3000, "training": 10_000, "redone": 20_000}
    assert further.goodput is not None
    assert further.goodput.redone_steps == 20
    silent = charged(job, 13)
    assert ledger_of(silent) == {"recovering": 3000, "training": 10_000}


def test_updates_of_a_killed_rank_0_after_its_last_times_are_redone_too() -> None:
    """The agent knows the last step exactly, but the times only up to the last heartbeat."""
    known = GoodputStatus(recovering_milliseconds=3000, reached_step=20)
    job = with_status(active_job(attempt=2), goodput=known)
    report = trained(20, times=(0, 0, 0), measured=16, at=7, attempt=2, resumed_from=15)
    ended = lost("RankFailed", at=7, attempt=2)
    found = charged(job, 7, ended, statuses=report)
    assert ledger_of(found) == {"recovering": 3000, "redone": 4000}
    assert found.goodput is not None
    assert found.goodput.redone_steps == 5


@pytest.mark.parametrize(
    ("before", "end", "steps", "share"),
    [(10, 14, 4, 1.0), (10, 20, 5, 0.5), (15, 20, 0, 0.0), (14, 14, 0, 1.0), (15, 15, 0, 0.0)],
)
def test_repeated_updates_are_those_below_the_reached_step(
    before: int, end: int, steps: int, share: float
) -> None:
    assert repeated_steps(before, end, 15) == steps
    assert repeated_share(before, end, 15) == share


def test_suspension_is_charged_from_its_request_until_the_resumption() -> None:
    job = started(TRAINING, starting_milliseconds=3000)
    stop = {"attempt_spec_hash": None} | SUSPENDED
    stopped = charged(job, 12, stop, statuses=trained(7, at=10))
    assert ledger_of(stopped) == {"starting": 3000, "training": 9000}
    waiting = job.model_copy(update={"status": stopped})
    assert ledger_of(charged(waiting, 99))["suspended"] == 87_000
    new = with_status(new_job(), **SUSPENDED)
    assert ledger_of(charged(new, 5)) == {"suspended": 5000}


def test_goodput_ledger_of_a_completed_job_ends_at_the_completion_time() -> None:
    done = [condition(ConditionType.SUCCEEDED, "True", "Completed")]
    change = {"completion_time": after(12), "conditions": done}
    job = started(TRAINING, restoring_milliseconds=3000)
    found = charged(job, 12.7, change, statuses=trained(7, at=10))
    assert ledger_of(found) == {"restoring": 3000, "training": 7000, "exiting": 2000}
    assert charged(finished_job(succeeded=True), 99).goodput is None


def test_time_after_the_work_of_all_ranks_is_charged_to_exiting() -> None:
    job = started(TRAINING, starting_milliseconds=3000)
    done = trained(7, at=10, phase=RankPhase.DONE)
    waiting = charged(job, 200, {"replicas": 2}, statuses=done)
    assert ledger_of(waiting) == {"starting": 3000, "training": 6000}
    stop = {"attempt_spec_hash": None} | SUSPENDED
    stopped = charged(job, 200, stop, statuses=done)
    assert ledger_of(stopped) == {"starting": 3000, "training": 7000, "exiting": 190_000}
    failed = charged(job, 200, lost(at=150), statuses=done)
    assert ledger_of(failed) == {
        "starting": 3000,
        "training": 7000,
        "exiting": 140_000,
        "recovering": 50_000,
    }


def test_goodput_ledger_missing_from_an_older_operator_begins_with_training() -> None:
    found = charged(TRAINING, 50, statuses=trained(7, at=10))
    assert ledger_of(found) == {"training": 50_000}
    later = charged(TRAINING.model_copy(update={"status": found}), 60, statuses=trained(9, at=59))
    assert ledger_of(later) == {"training": 50_000}


def test_goodput_ledger_pauses_while_the_clock_is_set_back() -> None:
    job = started(TRAINING, training_milliseconds=9000)
    assert ledger_of(charged(job, 3)) == {"training": 9000}


@pytest.mark.parametrize("step", [-(2**53), 2**53])
@pytest.mark.parametrize("seconds", [0.0, 253_402_300_000.0])
def test_nonsense_in_a_report_keeps_the_goodput_ledger_exact(step: int, seconds: float) -> None:
    rank = trained(step, times=(1e12, 1e12, 1e12), resumed_from=step)[0].ranks[0]
    strange = {"at": seconds, "joined_at": seconds, "first_step_at": seconds}
    report = agent_status(0, ranks=[rank.model_copy(update=strange)])
    for change in ({}, lost(at=5)):
        found = charged(started(STARTING), 10, change, statuses={0: report})
        assert total(found) == 10_000
        assert DDPJobStatus.model_validate(found.model_dump()) == found


def test_passing_time_alone_causes_no_status_write() -> None:
    job, seconds = active_job(), 0.0
    for seconds in (1.0, 2.0, 60.0):  # After a minute the spec counts as one that trains.
        plan = decide(world(job, all_pods(job), now=after(seconds)), DEFAULTS)
        job = job.model_copy(update={"status": plan.status})
    later = decide(world(job, all_pods(job), now=after(999)), DEFAULTS)
    assert later.status == job.status


def test_shares_of_a_charge_add_up_to_its_milliseconds() -> None:
    ledger = Ledger(NOW, None)
    thirds = {Bucket.TRAINING: 1.0, Bucket.DATA_WAIT: 1.0, Bucket.REDONE: 1.0}
    ledger.charge(100, thirds)
    ledger.charge(100, Bucket.HANG)
    ledger.charge(107, {Bucket.TRAINING: 0.0, Bucket.HANG: 0.0})
    assert ledger.position == 107
    assert ledger.fields()["hang_milliseconds"] == 0
    assert ledger.fields()["data_wait_milliseconds"] in {33, 34}


def milliseconds(now: datetime) -> int:
    return (now - NOW) // timedelta(milliseconds=1)


@settings(max_examples=100)
@given(st.lists(worlds(), min_size=1, max_size=5))
def test_goodput_ledger_has_no_gaps_for_any_sequence_of_states(found: list[World]) -> None:
    """The ledger never decreases or passes the present, and is complete when an attempt ends."""
    known: GoodputStatus | None = GoodputStatus()
    for seen in found:
        job = with_status(seen.job, goodput=known)
        here = World(**(vars(seen) | {"job": job}))
        plan = decide(here, DEFAULTS)
        if plan.status.goodput is None or plan.status == job.status:
            continue
        before, now = total(job.status), milliseconds(here.now)
        assert before <= total(plan.status) <= max(before, now)
        finished = is_finished(plan.status)
        if plan.status.attempt != job.status.attempt and not finished:
            assert total(plan.status) == max(before, now)
        known = plan.status.goodput
