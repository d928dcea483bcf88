"""Let a job wait, without pods, for something that another job holds."""

from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.reconcile import ended_attempts
from ddp_operator.reconcile.children import delete_pods
from ddp_operator.reconcile.conditions import ConditionWriter
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.progress import with_progress
from ddp_operator.reconcile.refused_spec import SPEC_CHANGED
from ddp_operator.reconcile.world import World

LOOK_SECONDS = 10.0
"""Interval, in seconds, at which a waiting job checks whether it may start."""


def wait_without_pods(world: World, reason: str, message: str) -> Plan:
    """Return the plan of a job that waits. It writes an Event when the wait begins.

    Args:
        world: The observed state of the job.
        reason: Reason of the condition PodsReady and of the Event.
        message: What the job waits for, and how to end the wait.
    """
    status = without_attempt(world)
    before = status.condition(ConditionType.PODS_READY)
    out = ConditionWriter(world, status)
    out.set(ConditionType.PODS_READY, False, reason, message)
    out.set(ConditionType.SUCCEEDED, None, "Pending", message)
    if status.condition(ConditionType.RENDEZVOUSED) is not None:
        out.set(ConditionType.RENDEZVOUSED, False, reason, message)
    if status.is_true(ConditionType.SUSPENDED):
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
    status = out.status.model_copy(update={"ready": f"0/{world.job.spec.nodes}"})
    begins = before is None or before.reason != reason
    event = Event(EventType.WARNING, reason, message)
    return Plan(
        status, tuple(delete_pods(world)), (event,) if begins else (), requeue_seconds=LOOK_SECONDS
    )


def without_attempt(world: World) -> DDPJobStatus:
    """Return the status without an attempt. An edit may have ended one with the old spec."""
    status = world.job.status
    if status.attempt == 0:
        return status
    status = with_progress(world, status, at_the_end=True)
    if status.attempt_spec_hash is not None:
        text = "the spec was changed"
        status = ended_attempts.with_ended_attempt(
            status, world.now, cause=Cause.FREE, reason=SPEC_CHANGED, message=text
        )
    # As after a suspension, the next attempt gets new pods and new deadlines.
    cleared = ("attempt_spec_hash", "refused_spec_hash", "start_time", "queue")
    status = status.model_copy(update=dict.fromkeys(cleared))
    return ended_attempts.with_last_step(status)
