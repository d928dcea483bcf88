"""Which news of a starting attempt may wait: pods that arrive one by one cost no write each."""

from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import Condition, ConditionType, DDPJobStatus
from ddp_operator.reconcile.conditions import is_stuck
from ddp_operator.reconcile.life import is_finished
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.world import World

FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(minutes=5)

_COUNTS = {"ready", "replicas", "next_action"}
_COUNTING = {ConditionType.PODS_READY, ConditionType.SUCCEEDED}
"""Conditions whose message counts and names the pods that are not there yet."""


def seconds_to_wait(world: World, plan: Plan, written: datetime | None) -> float:
    """How long the plan's status may stay unwritten; 0 where it tells that something happened.

    The wait doubles with the age of the attempt, so that a start of minutes costs a few writes
    whatever the number of pods, and what people read is never older than half of their waiting, nor
    than five minutes.

    Args:
        world: What the plan was made for.
        plan: What shall be done.
        written: When the status was written last, if this process did; its attempt's begin counts
            else.
    """
    status = world.job.status
    started = status.attempt_start_time
    if started is None or not _only_counts(world, plan):
        return 0.0
    written = written or started
    interval = min(LONGEST_WAIT, max(FIRST_WAIT, written - started))
    # A clock that was set back must not hold news for longer than that.
    return max(0.0, (interval - abs(world.now - written)).total_seconds())


def _only_counts(world: World, plan: Plan) -> bool:
    """Whether nothing but the number of pods that are there and train has changed."""
    if plan.status == world.job.status or is_finished(plan.status) or world.job.spec.suspend:
        return False
    if plan.actions or plan.events or world.blocked is not None:
        return False
    if any(is_stuck(pod) for pod in world.pods):
        return False
    if plan.status.is_true(ConditionType.RENDEZVOUSED):
        return False
    return _without_counts(world.job.status) == _without_counts(plan.status)


def _without_counts(status: DDPJobStatus) -> dict[str, Any]:
    conditions = [_without_message(c) for c in status.conditions]
    return {**status.model_dump(exclude=_COUNTS | {"conditions"}), "conditions": conditions}


def _without_message(condition: Condition) -> dict[str, Any]:
    counting = condition.type in _COUNTING
    return condition.model_dump(exclude={"message"} if counting else None)
