"""Measure how long a scheduling gate, a queue or a quota holds the pods of a job.

A queue or an administrator decides when a hold ends, so holds count against no deadline. The status
contains the times of a hold by the operator's clock, like those of the deadlines.
"""

from datetime import datetime, timedelta

from ddp_operator.api.status import ConditionType, DDPJobStatus, QueueStatus
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.reconcile.conditions import QUOTA_EXCEEDED, blocked_reason
from ddp_operator.reconcile.gangs import is_held_by_queue
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.world import World


def with_hold(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status with the start or the end of a hold of the pods recorded."""
    held = not status.is_true(ConditionType.RENDEZVOUSED) and _is_held(world)
    return _with_hold(status, world.now) if held else with_ended_hold(status, world.now)


def with_init_hold(world: World, status: DDPJobStatus, pod: PodView | None) -> DDPJobStatus:
    """Return the status with the start or the end of a hold of an init step's pod recorded.

    Args:
        world: The observed state of the job.
        status: The job's status.
        pod: Pod of the current try, or None if it does not exist.
    """
    held = _quota_refuses(world) if pod is None else pod.is_gated
    return _with_hold(status, world.now) if held else with_ended_hold(status, world.now)


def _with_hold(status: DDPJobStatus, now: datetime) -> DDPJobStatus:
    known = status.queue or QueueStatus()
    if known.since is not None:
        return status
    held = known.model_copy(update={"since": now.replace(microsecond=0)})
    return status.model_copy(update={"queue": held})


def with_ended_hold(status: DDPJobStatus, now: datetime) -> DDPJobStatus:
    """Return the status in which the current hold has ended. Its seconds are added to both sums."""
    known = status.queue
    if known is None or known.since is None:
        return status
    # Both times without fractions: the errors of many short holds do not add up.
    seconds = _since(known, now.replace(microsecond=0)) // timedelta(seconds=1)
    ended = QueueStatus(
        attempt_seconds=known.attempt_seconds + seconds, job_seconds=known.job_seconds + seconds
    )
    return status.model_copy(update={"queue": ended})


def of_next_attempt(status: DDPJobStatus, now: datetime) -> QueueStatus | None:
    """Return the hold times with which the next attempt begins."""
    known = with_ended_hold(status, now).queue
    if known is None or not known.job_seconds:
        return None
    return known.model_copy(update={"attempt_seconds": 0})


def held_in_attempt(status: DDPJobStatus, now: datetime) -> timedelta:
    """Return how long the pods were held in the current attempt, including the current hold."""
    known = status.queue or QueueStatus()
    return timedelta(seconds=known.attempt_seconds) + _since(known, now)


def held_in_job(status: DDPJobStatus, now: datetime) -> timedelta:
    """Return how long the pods were held since the job's start, including the current hold."""
    known = status.queue or QueueStatus()
    return timedelta(seconds=known.job_seconds) + _since(known, now)


def _since(known: QueueStatus, now: datetime) -> timedelta:
    """Return the duration of the current hold; 0 without one, or if the clock was set back."""
    return max(timedelta(0), now - known.since) if known.since is not None else timedelta(0)


def _is_held(world: World) -> bool:
    """Return whether a gate or a queue holds pods, or a quota refuses to create them.

    With a gang, only its pods count, because the attempt can start without the others.
    """
    if is_held_by_queue(world):
        return True
    if _quota_refuses(world):
        return True
    needed = world.pods if recorded_gang(world.job) is None else world.pods_of_gang
    return any(pod.is_gated for pod in needed)


def _quota_refuses(world: World) -> bool:
    return world.blocked is not None and blocked_reason(world.blocked) == QUOTA_EXCEEDED
