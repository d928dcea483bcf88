"""Apply the policies in their order: turn the observed state of a job into a plan."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults
from ddp_operator.reconcile import (
    backoff,
    budgets,
    checkpoint_owner,
    ended_attempts,
    escalation,
    exits,
    goodput,
    hangs,
    late_cause,
    lifecycle,
    node_ranges,
    queueing,
    recovery,
    refused_spec,
)
from ddp_operator.reconcile.children import ensure_attempt, fresh_pods
from ddp_operator.reconcile.conditions import (
    ConditionWriter,
    active_conditions,
    sentence_about,
    start_over_warning,
)
from ddp_operator.reconcile.fault import Fault
from ddp_operator.reconcile.faults import find_faults
from ddp_operator.reconcile.forbidden_pods import without_forbidden_pods
from ddp_operator.reconcile.held_pods import held_sentence
from ddp_operator.reconcile.images import mixed_image_events
from ddp_operator.reconcile.network import unprotected_events
from ddp_operator.reconcile.next_action import next_action
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.progress import seconds_until_due, with_progress
from ddp_operator.reconcile.restored import with_reported_attempt
from ddp_operator.reconcile.root_cause import find_root_cause
from ddp_operator.reconcile.world import World
from ddp_wire.contract import AgentPhase

STARTING_REQUEUE_SECONDS = 1.0
"""Reconcile interval, in seconds, while an attempt does not train yet."""
RUNNING_REQUEUE_SECONDS = 5.0
"""Shortest reconcile interval, in seconds, while an attempt trains and reports progress."""
ROOT_CAUSE_REQUEUE_SECONDS = 0.3
"""Reconcile interval, in seconds, while the root cause of the faults is unknown."""


def decide(world: World, defaults: Defaults) -> Plan:
    """Return the plan for a job, given its observed state."""
    if world.job.metadata.deletion_timestamp is not None:
        return Plan(world.job.status)  # The garbage collector deletes its children.
    world, restored = with_reported_attempt(world)
    plan = without_forbidden_pods(world, _decide(world, defaults), defaults)
    plan = replace(plan, events=(*restored, *plan.events))
    plan = _with_observation(world, plan)
    if plan.status == world.job.status:
        return plan  # The time that passes is no reason to write the status.
    return replace(plan, status=goodput.advance(world, plan.status))


def _decide(world: World, defaults: Defaults) -> Plan:
    if lifecycle.is_finished(world.job.status):
        return lifecycle.after_finish(world)
    status = world.job.status
    is_current = status.attempt_spec_hash == world.job.spec_hash
    if is_current and (completed := _completion(world)) is not None:
        return completed
    if world.job.spec.suspend:
        return lifecycle.suspend(world)
    if status.attempt_spec_hash is None and refused_spec.is_waiting(world):
        return refused_spec.wait_for_edit(world)
    if not is_current:
        return _begin(world, defaults)
    exceeded = lifecycle.exceeded_deadline(world)
    if exceeded is not None:
        return _fail_by_deadline(world, *exceeded)
    if (corrected := late_cause.correct(world)) is not None:
        return corrected
    wait = backoff.remaining(status, world.now)
    if wait > timedelta(0):
        return Plan(status, requeue_seconds=wait.total_seconds())
    faults = find_faults(world)
    if faults:
        return _handle_faults(world, faults, defaults)
    return _continue_attempt(world, status, defaults)


def _begin(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a job without an attempt of the current spec."""
    if world.checkpoint_owner is not None:
        return checkpoint_owner.wait(world, world.checkpoint_owner)
    if world.job.status.attempt_spec_hash is None:
        return _start_or_resume(world, defaults)
    return _restart_for_new_spec(world, defaults)


def _completion(world: World) -> Plan | None:
    """Return the plan that completes the job, or None.

    Ranks that have done their work may exit by themselves. If something keeps them from it, the job
    is complete all the same, because a new attempt would only find the finished run.
    """
    if all_succeeded(world):
        return _complete(world)  # Even if a deadline has passed before the operator looked.
    if not exits.work_is_done(world):
        return None
    if world.job.spec.suspend:
        return _complete(world, "spec.suspend was set")
    exceeded = lifecycle.exceeded_deadline(world)
    if exceeded is not None:
        return _complete(world, exceeded[1])
    faults = find_faults(world)
    return _complete(world, faults[0].failure.message) if faults else None


def all_succeeded(world: World) -> bool:
    """Return whether every rank of the attempt exited with code 0 and every container has ended."""
    return world.succeeded >= set(range(world.job.nodes))


def _start_or_resume(world: World, defaults: Defaults) -> Plan:
    """Return the plan of the first attempt, or of the first one after a suspension."""
    status = world.job.status
    resumed = status.attempt > 0
    text = f"attempt {status.attempt + 1} starts with {world.job.spec.nodes} pods"
    event = Event(EventType.NORMAL, "Resumed" if resumed else "Started", text)
    if resumed:
        status = budgets.charge(status, Cause.FREE, world.now)
    status = status.model_copy(
        update={
            "start_time": world.now.replace(microsecond=0),
            "queue": None,
            "refused_spec_hash": None,
            "attempts_without_progress": 0,
            "pods": fresh_pods(world.job, defaults),
        }
    )
    if status.is_true(ConditionType.SUSPENDED):
        out = ConditionWriter(world, status)
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
        status = out.status
    events = (event, *unprotected_events(world.job, defaults))
    return _new_attempt(world, status, events, defaults)


def _restart_for_new_spec(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a free new attempt, because a field that defines the pods has changed."""
    status = world.job.status
    text = f"attempt {status.attempt + 1} starts because the spec was changed"
    event = Event(EventType.NORMAL, refused_spec.SPEC_CHANGED, text)
    status = ended_attempts.with_ended_attempt(
        status,
        world.now,
        cause=Cause.FREE,
        reason=refused_spec.SPEC_CHANGED,
        message="the spec was changed",
    )
    status = budgets.charge(status, Cause.FREE, world.now)
    # The new spec may fix the stall.
    counts = {"stalled_attempts": 0, "attempts_without_progress": 0}
    status = status.model_copy(update=counts | {"pods": fresh_pods(world.job, defaults)})
    events = (event, *unprotected_events(world.job, defaults))
    return _new_attempt(world, status, events, defaults)


def _fail_by_deadline(world: World, reason: str, message: str) -> Plan:
    """Return the plan that fails the job because a deadline has passed."""
    status = ended_attempts.with_ended_attempt(
        world.job.status, world.now, cause=None, reason=reason, message=message
    )
    event = Event(EventType.WARNING, reason, message)
    plan = lifecycle.finish(world, status, succeeded=False, reason="Failed", message=message)
    return Plan(plan.status, events=(event,), requeue_seconds=0)


def _handle_faults(world: World, faults: Sequence[Fault], defaults: Defaults) -> Plan:
    """Return the plan that ends the attempt: it starts the next one, or fails the job."""
    fault = find_root_cause(list(faults), world)
    if fault is None:
        return Plan(world.job.status, requeue_seconds=ROOT_CAUSE_REQUEUE_SECONDS, undecided=True)
    failure, now = fault.failure, world.now
    status = with_progress(world, world.job.status, at_the_end=True)
    if refused_spec.is_refused_edit(status, fault):
        return refused_spec.refuse(world, status, fault)
    status = status.model_copy(update={"last_failure": failure})
    status = escalation.count_stalled_attempt(world, status, fault, faults)
    status = ended_attempts.with_ended_attempt(
        status, now, cause=failure.cause, reason=failure.reason, message=failure.message
    )
    why_not = budgets.why_not_retried(world.job, status, fault, now)
    if why_not is not None:
        message = f"{failure.message} {why_not}"
        return lifecycle.finish(world, status, succeeded=False, reason="Failed", message=message)
    status = budgets.charge(status, failure.cause, now)
    status = backoff.count_attempt(world, status)
    status = recovery.start_trace(status, failure, now)
    text = f"attempt {status.attempt + 1} starts{_when(status, now)} because {failure.message}"
    event = Event(EventType.WARNING, "Restarting", text)
    return _new_attempt(world, status, (event,), defaults)


def _when(status: DDPJobStatus, now: datetime) -> str:
    """Return when the next attempt starts, for a sentence, or "" if it starts at once."""
    delay = backoff.delay(status)
    return f" at {now + delay:%H:%M:%S} UTC" if delay else ""


def _new_attempt(
    world: World, status: DDPJobStatus, events: tuple[Event, ...], defaults: Defaults
) -> Plan:
    """Return the plan of the next attempt. Its status is written before any of its actions run."""
    attempt = status.attempt + 1
    status = status.model_copy(
        update={
            "attempt": attempt,
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
    nodes = world.job.model_copy(update={"status": status}).nodes
    out.set_waiting_for_ranks()
    out.set(ConditionType.PODS_READY, False, "NotReady", f"0 of {nodes} pods are training")
    out.status = out.status.model_copy(update={"ready": f"0/{nodes}"})
    if status.last_failure is not None and status.last_failure.attempt == attempt - 1:
        when = _when(status, world.now)
        message = f"attempt {attempt} starts{when} because {status.last_failure.message}"
        out.set(ConditionType.SUCCEEDED, None, "Recovering", message)
    else:
        out.set(ConditionType.SUCCEEDED, None, "Pending", f"attempt {attempt} starts")
    wait = backoff.delay(status)
    if wait:
        return Plan(out.status, (), events, wait.total_seconds())
    actions = ensure_attempt(world, out.status, defaults)
    return Plan(out.status, tuple(actions), events, STARTING_REQUEUE_SECONDS)


def _complete(world: World, interrupted_by: str = "") -> Plan:
    """Return the plan that completes the job.

    Args:
        world: The observed state of the job. All ranks have exited, or have done their work.
        interrupted_by: Sentence about what keeps ranks from exiting by themselves, or "".
    """
    status = with_progress(world, world.job.status, at_the_end=True)
    ranks = world.job.nodes * world.job.spec.ranks_per_node
    problems = exits.exit_events(world)
    how = "have done their work" if problems or interrupted_by else "exited with code 0"
    end = f"; while they exited, {interrupted_by}" if interrupted_by else ""
    message = f"all {ranks} ranks of attempt {status.attempt} {how}{end}"
    status = escalation.reset_stalled_attempts(status)
    status = ended_attempts.with_ended_attempt(
        status, world.now, cause=None, reason="Completed", message=message
    )
    plan = lifecycle.finish(world, status, succeeded=True, reason="Completed", message=message)
    return replace(plan, events=(*problems, *plan.events))


def _continue_attempt(world: World, status: DDPJobStatus, defaults: Defaults) -> Plan:
    old_resumed_from = status.resumed_from_step
    had_joined = status.is_true(ConditionType.RENDEZVOUSED)
    old_recovery, old_straggler = status.last_recovery, status.straggler
    status = status.model_copy(update={"suspect": hangs.suspect(world)})
    status = escalation.reset_stalled_attempts(with_progress(world, status))
    status = recovery.complete_trace(world, active_conditions(world, status))
    status = queueing.with_hold(world, refused_spec.with_trained_spec(world, status))
    succeeded = node_ranges.to_text(world.succeeded) or None
    status = status.model_copy(update={"succeeded_nodes": succeeded})
    events = []
    if status.is_true(ConditionType.RENDEZVOUSED) and not had_joined:
        text = f"all ranks of attempt {status.attempt} are training"
        events.append(Event(EventType.NORMAL, "Running", text))
    if status.is_true(ConditionType.RENDEZVOUSED) and not status.mixed_images:
        # A kubelet may report an image after its pod's ranks have joined.
        mixed = mixed_image_events(world.job, world.pods)
        status = status.model_copy(update={"mixed_images": bool(mixed) or None})
        events += mixed
    if status.resumed_from_step is not None and status.resumed_from_step != old_resumed_from:
        text = f"attempt {status.attempt} resumed from step {status.resumed_from_step}"
        events.append(Event(EventType.NORMAL, "ResumedFromCheckpoint", text))
    if status.last_recovery is not None and status.last_recovery is not old_recovery:
        after = f"{recovery.duration(status.last_recovery)} after the fault"
        text = f"attempt {status.attempt} trains {after}; status.lastRecovery has the parts"
        events.append(Event(EventType.NORMAL, "Recovered", text))
    held, summary = held_sentence(world), world.job.status.condition(ConditionType.SUCCEEDED)
    if held is not None and (summary is None or held not in summary.message):
        events.append(Event(EventType.WARNING, "PodHeld", held))
    events += hangs.suspect_events(world, status)
    slow = status.straggler
    if slow is not None and (old_straggler is None or old_straggler.rank != slow.rank):
        events.append(Event(EventType.WARNING, "Straggler", sentence_about(slow)))
    actions = ensure_attempt(world, status, defaults)
    return Plan(status, tuple(actions), tuple(events), _requeue_seconds(world, status))


def _requeue_seconds(world: World, status: DDPJobStatus) -> float:
    is_training = status.is_true(ConditionType.PODS_READY)
    deadline = lifecycle.seconds_to_deadline(world, status)
    has_progress = world.job.spec.task is None or status.progress is not None
    seconds = STARTING_REQUEUE_SECONDS
    if is_training and has_progress:
        # Changes of pods and agents wake the job earlier, so only its progress can become due.
        seconds = max(RUNNING_REQUEUE_SECONDS, world.progress_interval.total_seconds())
    ended = (AgentPhase.SUCCEEDED, AgentPhase.FAILED)
    if any(r.phase in ended for r in world.agent_statuses.values()):
        seconds = STARTING_REQUEUE_SECONDS
    earlier = (seconds, deadline, seconds_until_due(world, status))
    return min(one for one in earlier if one is not None)


def _with_observation(world: World, plan: Plan) -> Plan:
    """Return the plan with the fields of its status that every reconcile sets."""
    status = plan.status.model_copy(
        update={
            "observed_generation": world.job.metadata.generation,
            "replicas": len(world.pods),
            "selector": _selector(world),
            "next_action": next_action(world, plan),
        }
    )
    return replace(plan, status=status)


def _selector(world: World) -> str:
    return ",".join(f"{k}={v}" for k, v in names.pod_selector(world.job).items())
