"""Compute the goodput ledger in the status: charge each millisecond of a job to one bucket.

The ledger depends only on the statuses of the job and its agents, so a restart of the operator
loses nothing. While an attempt trains, the ledger is complete up to the newest update that global
rank 0 has reported. Later time is charged once the operator knows its use.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from ddp_operator.api.goodput import Bucket, CountedStatus, GoodputStatus
from ddp_operator.api.status import ConditionType, DDPJobStatus, FailureStatus
from ddp_operator.reconcile.hangs import HUNG
from ddp_operator.reconcile.ledger import Ledger
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.training import (
    Training,
    observed_training,
    repeated_share,
    repeated_steps,
)
from ddp_operator.reconcile.world import World
from ddp_wire.messages import TrainingTimes

_SUSPENDED = "Suspended"
"""Reason of a suspended job, and of the end of the attempt that a suspension stopped."""


_WAITS = frozenset({_SUSPENDED, "Invalid", "Completed"})
"""Reasons of ended attempts after which the job waits for its user.

`ddpjob run` resumes a completed job if its config asks for more.
"""


def advance(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return a status, which is about to be written, with an advanced ledger.

    Args:
        world: The observed state, with the status that the new one replaces.
        status: The new status.
    """
    old, created = world.job.status, world.job.metadata.creation_timestamp
    if created is None or is_finished(old):
        return status
    ledger = Ledger(created, old.goodput)
    now = ledger.at(world.now)
    if is_finished(status) and status.completion_time is not None:
        now = ledger.at(status.completion_time)
    if old.attempt_spec_hash is None:
        suspended = old.refused_spec_hash or _SUSPENDED in {_reason(old), _reason(status)}
        # Only an init step makes a job without an attempt Starting.
        used = Bucket.STARTING if _reason(old) == "Starting" else Bucket.QUEUED
        ledger.charge(now, Bucket.SUSPENDED if suspended else used)
        update: dict[str, Any] = {"counted": None}
    else:
        update = _charge_attempt(world, status, ledger, now)
    known = old.goodput or GoodputStatus()
    goodput = known.model_copy(update=ledger.fields() | update)
    return status.model_copy(update={"goodput": goodput})


def _charge_attempt(world: World, status: DDPJobStatus, ledger: Ledger, now: int) -> dict[str, Any]:
    """Charge the time of the old status' attempt. Return the other changed fields."""
    old, seen = world.job.status, observed_training(world, world.job.status.attempt)
    known = old.goodput or GoodputStatus()
    ended = _has_ended(old, status)
    until = min(now, _end_of_training(world, status, seen, ledger, now)) if ended else now
    if old.goodput is None and old.is_true(ConditionType.RENDEZVOUSED):
        ledger.charge(until, Bucket.TRAINING)  # An older operator kept no ledger.
    counted = known.counted
    if _charge_start(world, status, seen, ledger, until):
        counted = _charge_training(world, seen, ledger, until, ended=ended)
    update: dict[str, Any] = {"counted": counted}
    if counted is not None:
        before = known.counted.step if known.counted else _first_step(world, seen)
        repeated = repeated_steps(before, counted.step, known.reached_step)
        update["redone_steps"] = known.redone_steps + repeated
    if ended:
        failure = _failure_of(old.attempt, status)
        if failure is not None and failure.reason == HUNG:
            ledger.charge(now, Bucket.HANG)  # It lasts until the operator has confirmed it.
        if seen.done_at is not None:
            ended_at = now if failure is None else min(now, ledger.at(failure.time))
            ledger.charge(ended_at, Bucket.EXITING)
        ledger.charge(now, _bucket_after_the_end(status))
        reached = [counted.step if counted else 0, seen.step or 0, known.reached_step]
        update |= {"counted": None, "reached_step": max(reached)}
    return update


def _charge_start(
    world: World, status: DDPJobStatus, seen: Training, ledger: Ledger, until: int
) -> bool:
    """Charge the time until the first update. Return whether the ranks have reached it.

    Without heartbeats, the training of a `command` begins when its ranks have joined.
    """
    joined = _joined_at(world, status, seen, ledger)
    _charge_until_joined(world, ledger, until if joined is None else min(until, joined))
    if joined is None:
        return False
    rank = seen.rank_zero
    first = rank.first_step_at if rank is not None else None
    if rank is None or (first is None and world.job.spec.task is None):
        return True
    stepped = until if first is None else min(until, _at_unix(ledger, first))
    ledger.charge(stepped, Bucket.RESTORING)
    return first is not None


def _joined_at(world: World, status: DDPJobStatus, seen: Training, ledger: Ledger) -> int | None:
    """Return the time at which all ranks of the old status' attempt had joined, or None."""
    old, rank = world.job.status, seen.rank_zero
    if old.is_true(ConditionType.RENDEZVOUSED):
        return ledger.position
    joined = rank.joined_at if rank is not None else None
    if joined is None and world.job.spec.task is None:
        joined = seen.joined_at
    if joined is not None:
        return _at_unix(ledger, joined)
    same_attempt = status.attempt == old.attempt
    has_joined = same_attempt and status.is_true(ConditionType.RENDEZVOUSED)
    return ledger.at(world.now) if has_joined else None


def _charge_until_joined(world: World, ledger: Ledger, until: int) -> None:
    """Charge the time before the ranks of the attempt have joined."""
    old = world.job.status
    resumes = bool(old.attempts) and old.attempts[-1].reason in _WAITS
    if old.attempt > 1 and not resumes:
        ledger.charge(until, Bucket.RECOVERING)
        return
    pods = [pod for index in world.members if (pod := world.pod(index)) is not None]
    scheduled = [pod for pod in pods if pod.node is not None or pod.phase != "Pending"]
    if len(scheduled) < len(world.members):
        ledger.charge(until, Bucket.QUEUED)
        return
    times = [ledger.at(pod.scheduled_at) for pod in scheduled if pod.scheduled_at is not None]
    ledger.charge(min(until, max(times, default=0)), Bucket.QUEUED)
    ledger.charge(until, Bucket.STARTING)


def _charge_training(
    world: World, seen: Training, ledger: Ledger, until: int, *, ended: bool
) -> CountedStatus | None:
    """Charge the time of the training. Return the part of the attempt that is now counted.

    The times of rank 0 split the time up to its newest update. The remaining time counts as
    training. It is charged only when the attempt has ended, or if rank 0 reports no times.
    """
    known = world.job.status.goodput or GoodputStatus()
    counted = known.counted or CountedStatus(step=_first_step(world, seen))
    rank, reached = seen.rank_zero, known.reached_step
    if rank is not None and rank.training_times is not None:
        times = rank.training_times
        measured = rank.step if times.step is None else times.step
        new = _counted(times, max(counted.step, measured))
        _charge_times(counted, new, reached, ledger, until)
        if not ended:
            return new
        counted = new
    if seen.step is None:
        ledger.charge(until, Bucket.TRAINING)
        return known.counted
    last = max(counted.step, seen.step)
    redone = repeated_share(counted.step, last, reached)
    ledger.charge(until, {Bucket.TRAINING: 1.0 - redone, Bucket.REDONE: redone})
    return counted.model_copy(update={"step": last})


def _charge_times(
    old: CountedStatus, new: CountedStatus, reached: int, ledger: Ledger, until: int
) -> None:
    """Charge the times that rank 0 has measured since the last charge.

    If the updates cross `reached`, the times are split in proportion to the updates.
    """
    training = max(0, new.training_milliseconds - old.training_milliseconds)
    data_wait = max(0, new.data_wait_milliseconds - old.data_wait_milliseconds)
    checkpoint = max(0, new.checkpoint_stall_milliseconds - old.checkpoint_stall_milliseconds)
    redone = repeated_share(old.step, new.step, reached)
    shares = {
        Bucket.TRAINING: (1.0 - redone) * training,
        Bucket.DATA_WAIT: (1.0 - redone) * data_wait,
        Bucket.REDONE: redone * (training + data_wait),
        Bucket.CHECKPOINT_STALL: float(checkpoint),
    }
    end = ledger.position + training + data_wait + checkpoint
    ledger.charge(min(until, end), shares)


def _counted(times: TrainingTimes, step: int) -> CountedStatus:
    return CountedStatus(
        step=step,
        training_milliseconds=round(1000 * times.training_seconds),
        data_wait_milliseconds=round(1000 * times.data_wait_seconds),
        checkpoint_stall_milliseconds=round(1000 * times.checkpoint_seconds),
    )


def _first_step(world: World, seen: Training) -> int:
    """Return the completed updates of the run at the start of the attempt, at least 0."""
    resumed = seen.resumed_from
    if resumed is None:
        resumed = world.job.status.resumed_from_step or 0
    return max(0, resumed)  # A hostile agent may report any number.


def _end_of_training(
    world: World, status: DDPJobStatus, seen: Training, ledger: Ledger, now: int
) -> int:
    """Return the time until which the ranks of an ended attempt made progress.

    If the ranks trained until the end, the newest reported progress is at most one status interval
    older than the end. After a hang, no time after the newest progress counts as training.
    """
    if seen.done_at is not None:
        return _at_unix(ledger, seen.done_at)
    failure = _failure_of(world.job.status.attempt, status)
    last = None if seen.last_progress_at is None else _at_unix(ledger, seen.last_progress_at)
    if failure is None:
        completed = status.is_true(ConditionType.SUCCEEDED)
        return last if completed and last is not None else now
    failed = ledger.at(failure.time)
    if last is None:
        return failed
    if failure.reason == HUNG:
        return last
    interval = world.progress_interval // timedelta(milliseconds=1)
    return failed if failed <= last + interval else last


def _has_ended(old: DDPJobStatus, status: DDPJobStatus) -> bool:
    """Return whether the new status ends the attempt of the old one."""
    other = status.attempt != old.attempt or status.attempt_spec_hash is None
    return other or is_finished(status)


def _failure_of(attempt: int, status: DDPJobStatus) -> FailureStatus | None:
    failure = status.last_failure
    return failure if failure is not None and failure.attempt == attempt else None


def _bucket_after_the_end(status: DDPJobStatus) -> Bucket:
    if status.attempt_spec_hash is None:
        return Bucket.SUSPENDED
    return Bucket.EXITING if status.is_true(ConditionType.SUCCEEDED) else Bucket.RECOVERING


def _reason(status: DDPJobStatus) -> str | None:
    summary = status.condition(ConditionType.SUCCEEDED)
    return summary.reason if summary is not None else None


def _at_unix(ledger: Ledger, seconds: float) -> int:
    return ledger.at(datetime.fromtimestamp(seconds, UTC))
