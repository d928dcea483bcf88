"""Plan the start of an attempt: the first, or one after a suspension, an edit or a fault.

A start first changes the status: it sets the new number and the spec of the pods, and resets all
fields about the previous attempt. The controller writes this status before it creates a pod or
sends an order. So a restarted operator continues the same attempt, and no number is used twice. If
the start is delayed by the backoff, the plan has no actions yet.
"""

from datetime import datetime

from ddp_operator.api.members import RESIZED
from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile import (
    backoff,
    budgets,
    elastic,
    ended_attempts,
    escalation,
    queueing,
    refused_spec,
    resizes,
)
from ddp_operator.reconcile.children import ensure_attempt, fresh_pods
from ddp_operator.reconcile.conditions import ConditionWriter, start_over_warning
from ddp_operator.reconcile.network import unprotected_events
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.progress import with_progress
from ddp_operator.reconcile.world import World
from ddp_wire import node_ranges

GANG_REPLACED = "GangReplaced"
"""Reason of the end of an attempt whose pods could not stay in their gang."""
STARTING_REQUEUE_SECONDS = 1.0
"""Reconcile interval, in seconds, while an attempt does not train yet."""


def start_or_resume(world: World, defaults: Defaults) -> Plan:
    """Return the plan of the first attempt, or of the first attempt after a suspension."""
    status = world.job.status
    resumed = status.attempt > 0
    text = f"attempt {status.attempt + 1} starts with {world.job.spec.nodes} pods"
    event = Event(EventType.NORMAL, "Resumed" if resumed else "Started", text)
    if resumed:
        status = budgets.charge(status, Cause.FREE, world.now)
    status = status.model_copy(
        update={
            # The time of the init steps counts against activeDeadlineSeconds, without their holds.
            "start_time": status.start_time or world.now.replace(microsecond=0),
            "refused_spec_hash": None,
            "attempts_without_progress": 0,
            "pods": fresh_pods(world.job, defaults, world.free_port),
        }
    )
    if status.is_true(ConditionType.SUSPENDED):
        out = ConditionWriter(world, status)
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
        status = out.status
    events = (event, *unprotected_events(world.job, defaults))
    return start_next(world, status, events, defaults)


def restart_for_new_spec(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a free new attempt, because a spec field that affects the pods changed."""
    return _restart(world, refused_spec.SPEC_CHANGED, "the spec was changed", defaults)


def restart_with_new_gang(world: World, why: str, defaults: Defaults) -> Plan:
    """Return the plan of a free new attempt whose pods take a new gang."""
    return _restart(world, GANG_REPLACED, why, defaults)


def _restart(world: World, reason: str, why: str, defaults: Defaults) -> Plan:
    """Return the plan of a free new attempt in which all pods are created together."""
    status = world.job.status
    text = f"attempt {status.attempt + 1} starts because {why}"
    event = Event(EventType.NORMAL, reason, text)
    status = ended_attempts.with_ended_attempt(
        status, world.now, cause=Cause.FREE, reason=reason, message=why
    )
    status = budgets.charge(status, Cause.FREE, world.now)
    # The new spec may fix the stall.
    counts = {"stalled_attempts": 0, "attempts_without_progress": 0}
    status = status.model_copy(
        update=counts | {"pods": fresh_pods(world.job, defaults, world.free_port)}
    )
    events = (event, *unprotected_events(world.job, defaults))
    return start_next(world, status, events, defaults)


def resize(world: World, change: elastic.Resize, defaults: Defaults) -> Plan:
    """Return the plan of a free new attempt with other members."""
    status, before = with_progress(world, world.job.status, at_the_end=True), len(world.members)
    status = ended_attempts.with_ended_attempt(
        status, world.now, cause=Cause.FREE, reason=RESIZED, message=change.why
    )
    status = budgets.charge(status, Cause.FREE, world.now)
    status = resizes.with_resize(world, status, change.members, change.why)
    if status.is_true(ConditionType.RENDEZVOUSED):
        # The attempt trained without a fault, so no earlier fault may delay the next one.
        status = status.model_copy(update={"attempts_without_progress": 0})
    text = (
        f"attempt {status.attempt + 1} trains on {len(change.members)} of {world.job.nodes} nodes"
        f" instead of {before}, because {change.why}"
    )
    event = Event(EventType.NORMAL, "Resizing", text)
    return start_next(world, status, (event,), defaults, change.members)


def when_it_starts(status: DDPJobStatus, now: datetime) -> str:
    """Return a phrase about when the next attempt starts, or "" if it starts at once."""
    delay = backoff.delay(status)
    return f" at {now + delay:%H:%M:%S} UTC" if delay else ""


def start_next(
    world: World,
    status: DDPJobStatus,
    events: tuple[Event, ...],
    defaults: Defaults,
    members: elastic.Members | None = None,
) -> Plan:
    """Return the plan of the next attempt. Its status is written before any of its actions run.

    Args:
        world: The observed state of the job.
        status: The job's status, with the end of the previous attempt.
        events: Events about the end of the previous attempt.
        defaults: The operator's defaults for spec fields that a job leaves out.
        members: Nodes that train in the attempt. None for all nodes.
    """
    attempt = status.attempt + 1
    nodes = world.job.model_copy(update={"status": status}).nodes
    members = frozenset(range(nodes)) if members is None else members
    status = status.model_copy(
        update={
            "attempt": attempt,
            "members": node_ranges.to_text(members),
            "attempt_start_time": (world.now + backoff.delay(status)).replace(microsecond=0),
            "attempt_spec_hash": world.job.spec_hash,
            "queue": queueing.of_next_attempt(status, world.now),
            "succeeded_nodes": None,
            "resumed_from_step": None,
            "straggler": None,
            "suspect": None,
            "mixed_images": None,
            "attempt_start_step": escalation.newest_step(status),
        }
    )
    warning = start_over_warning(world.job, status)
    if warning is not None:
        events = (*events, Event(EventType.WARNING, "NoCheckpoint", warning))
    out = ConditionWriter(world, status)
    out.set_waiting_for_ranks()
    out.set(ConditionType.PODS_READY, False, "NotReady", f"0 of {nodes} pods are training")
    out.status = out.status.model_copy(update={"ready": f"0/{nodes}"})
    if status.last_failure is not None and status.last_failure.attempt == attempt - 1:
        when = when_it_starts(status, world.now)
        message = f"attempt {attempt} starts{when} because {status.last_failure.message}"
        out.set(ConditionType.SUCCEEDED, None, "Recovering", message)
    else:
        out.set(ConditionType.SUCCEEDED, None, "Pending", f"attempt {attempt} starts")
    wait = backoff.delay(status)
    if wait:
        return Plan(out.status, (), events, wait.total_seconds())
    actions = ensure_attempt(world, out.status, defaults)
    return Plan(out.status, tuple(actions), events, STARTING_REQUEUE_SECONDS)
