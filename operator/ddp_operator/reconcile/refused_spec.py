"""Let a job wait for the next edit when the trainer refuses the edited spec.

The ranks exit with code 2, for example because the new number of nodes does not divide the batch.
The run was correct before the edit and has checkpoints, so the job must not fail and no budget is
used.
"""

from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.reconcile import ended_attempts
from ddp_operator.reconcile.backoff import STEADY
from ddp_operator.reconcile.children import delete_pods
from ddp_operator.reconcile.conditions import INVALID, ConditionWriter
from ddp_operator.reconcile.fault import Fault
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.world import World

SPEC_CHANGED = "SpecChanged"
"""Reason of the end of an attempt whose spec a user has changed."""


def with_trained_spec(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status in which the current spec is recorded as trained, once it trains.

    A `command` may report no updates. Its spec counts as trained when the ranks have been joined
    for a minute.
    """
    spec_hash = status.attempt_spec_hash
    if status.trained_spec_hash == spec_hash or not _trains(world, status):
        return status
    return status.model_copy(update={"trained_spec_hash": spec_hash})


def _trains(world: World, status: DDPJobStatus) -> bool:
    first = world.first_pod
    agent = world.agent_status(first) if first is not None else None
    timeline = agent.timeline if agent and agent.attempt == status.attempt else None
    if timeline is not None and timeline.stepped is not None:
        return True
    joined = status.condition(ConditionType.RENDEZVOUSED)
    if joined is None or not status.is_true(ConditionType.RENDEZVOUSED):
        return False
    return world.now - joined.last_transition_time >= STEADY


def is_refused_edit(status: DDPJobStatus, fault: Fault) -> bool:
    """Return whether a fault means that the trainer refuses the spec after a user edited it.

    A new job that the trainer refuses fails, because there is no run to protect.
    """
    trained = status.trained_spec_hash
    if not fault.permanent or trained == status.attempt_spec_hash:
        return False
    before = {attempt.number: attempt.reason for attempt in status.attempts}
    edited = before.get(status.attempt - 1) in {SPEC_CHANGED, INVALID}
    return trained is not None or edited


def refuse(world: World, status: DDPJobStatus, fault: Fault) -> Plan:
    """Return the plan that ends the attempt, deletes its pods and waits for an edit."""
    cause = fault.failure.message
    message = f"{cause}; no budget is charged, and an edit of the job starts it again"
    status = ended_attempts.with_ended_attempt(
        status, world.now, cause=Cause.FREE, reason=INVALID, message=cause
    )
    out = ConditionWriter(world, status)
    out.set_waiting_for_ranks()
    out.set(ConditionType.PODS_READY, False, INVALID, message)
    out.set(ConditionType.SUCCEEDED, None, INVALID, message)
    status = out.status.model_copy(
        update={
            "ready": f"0/{world.job.nodes}",
            "refused_spec_hash": status.attempt_spec_hash,
            # As after a suspension, the next attempt gets new pods and new deadlines.
            "attempt_spec_hash": None,
            "start_time": None,
            "queue": None,
        }
    )
    event = Event(EventType.WARNING, INVALID, message)
    return Plan(status, tuple(delete_pods(world)), (event,))


def is_waiting(world: World) -> bool:
    """Return whether the job waits for an edit of a spec that the trainer refused."""
    return world.job.status.refused_spec_hash == world.job.spec_hash


def wait_for_edit(world: World) -> Plan:
    """Return the plan of a job that waits for an edit, which deletes the remaining pods."""
    return Plan(world.job.status, tuple(delete_pods(world)))
