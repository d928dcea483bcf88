"""Delay the next attempt exponentially while attempts end without progress.

A Kubernetes node that refuses every pod could otherwise use up a budget within seconds, and a
program that always asks for a free restart would restart without end.
"""

from datetime import datetime, timedelta

from ddp_operator.api.status import ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.limits import ATTEMPT_DELAY
from ddp_operator.reconcile.escalation import has_saved
from ddp_operator.reconcile.world import World

STEADY = timedelta(seconds=60)
"""Training time after which an attempt counts as progress even without a checkpoint."""


def count_attempt(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status in which the ended attempt is counted, whatever ended it."""
    count = 0 if _made_progress(world, status) else status.attempts_without_progress + 1
    return status.model_copy(update={"attempts_without_progress": count})


def delay(status: DDPJobStatus) -> timedelta:
    """Return the delay of the next attempt: 0 s after the first failure, then 1, 2, 4 … 300 s."""
    return timedelta(seconds=ATTEMPT_DELAY.after(status.attempts_without_progress - 1))


def remaining(status: DDPJobStatus, now: datetime) -> timedelta:
    """Return the time until the current attempt may start; 0 or less if it may start now.

    If the time is longer than the delay, the clock was set back, and the attempt may start.
    """
    start = status.attempt_start_time
    if start is None or start - now > delay(status) + timedelta(seconds=1):
        return timedelta(0)
    return start - now


def before_creation(earlier: int) -> timedelta:
    """Return the wait before a pod is recreated for the same attempt: 0, 0, 1, 2, 4 … 300 s.

    Another controller may delete the pods of a job before their ranks start. No budget limits these
    deletions.

    Args:
        earlier: How often the pod was created for the attempt.
    """
    return timedelta(seconds=ATTEMPT_DELAY.after(earlier - 1))


def _made_progress(world: World, status: DDPJobStatus) -> bool:
    joined = status.condition(ConditionType.RENDEZVOUSED)
    if has_saved(status) or joined is None or joined.status is not ConditionStatus.TRUE:
        return has_saved(status)
    return world.now - joined.last_transition_time >= STEADY
