"""Delay status writes while an attempt starts and only its pod counts change."""

from datetime import datetime, timedelta
from typing import Any

from ddp_operator.api.status import Condition, ConditionType, DDPJobStatus
from ddp_operator.limits import ENDING_WRITES_SECONDS, STARTING_WRITES
from ddp_operator.reconcile.conditions import is_stuck
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.world import World

_SHORTEST_INTERVAL = timedelta(seconds=STARTING_WRITES.first)
_LONGEST_INTERVAL = timedelta(seconds=STARTING_WRITES.longest)
_ENDING_INTERVAL = timedelta(seconds=ENDING_WRITES_SECONDS)

_COUNT_FIELDS = {"ready", "spares", "replicas", "next_action", "succeeded_nodes", "goodput"}
"""Status fields whose change alone causes no early write. The ledger only follows the other
fields."""
_COUNT_CONDITIONS = {
    ConditionType.GANG_SCHEDULED,
    ConditionType.PODS_READY,
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.SUCCEEDED,
}
"""Conditions whose messages only count or name pods that are not placed or not ready."""


def seconds_until_write(world: World, plan: Plan, written: datetime | None) -> float:
    """Return how many seconds the plan's status may stay unwritten; 0 means write it now.

    While an attempt starts, updates that change only pod counts are written after 10, 20, 40 … s.
    So the number of writes does not grow with the number of pods. The shown counts are at most as
    old as half the age of the attempt, and at most 5 min old.

    Args:
        world: The observed state that led to the plan.
        plan: The plan.
        written: Time of this process' last status write, or None for the start of the attempt.
    """
    status = world.job.status
    if _only_more_succeeded(world, plan) and written is not None:
        return max(0.0, (_ENDING_INTERVAL - abs(world.now - written)).total_seconds())
    started = status.attempt_start_time
    if started is None or not _only_counts_change(world, plan):
        return 0.0
    written = written or started
    interval = min(_LONGEST_INTERVAL, max(_SHORTEST_INTERVAL, written - started))
    # abs() limits the delay to one interval after the clock was set back.
    return max(0.0, (interval - abs(world.now - written)).total_seconds())


def is_minor(world: World, plan: Plan) -> bool:
    """Return whether a plan only updates observations and does not affect the job's course.

    A hostile agent can cause an unlimited number of these plans.
    """
    if plan.status == world.job.status or plan.actions or plan.events or is_finished(plan.status):
        return False
    old, new = world.job.status, plan.status
    same_course = (old.attempt, old.observed_generation) == (new.attempt, new.observed_generation)
    return same_course and world.blocked is None


def _only_counts_change(world: World, plan: Plan) -> bool:
    """Return whether a plan changes only the counts of existing and training pods."""
    if plan.status == world.job.status or is_finished(plan.status) or world.job.spec.suspend:
        return False
    if plan.actions or plan.events or world.blocked is not None:
        return False
    if any(is_stuck(pod) for pod in world.pods):
        return False
    if plan.status.is_true(ConditionType.RENDEZVOUSED):
        return False
    return _without_counts(world.job.status) == _without_counts(plan.status)


def _only_more_succeeded(world: World, plan: Plan) -> bool:
    """Return whether a plan only adds to the nodes that have succeeded."""
    if plan.actions or plan.events or is_finished(plan.status):
        return False
    old, new = world.job.status, plan.status
    changed = old.succeeded_nodes != new.succeeded_nodes
    return changed and _without_counts(old) == _without_counts(new)


def _without_counts(status: DDPJobStatus) -> dict[str, Any]:
    conditions = [_without_count_message(c) for c in status.conditions]
    return {**status.model_dump(exclude=_COUNT_FIELDS | {"conditions"}), "conditions": conditions}


def _without_count_message(condition: Condition) -> dict[str, Any]:
    counts = condition.type in _COUNT_CONDITIONS
    return condition.model_dump(exclude={"message"} if counts else None)
