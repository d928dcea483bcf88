"""Turn the observed state of a job into a plan: the first policy that applies decides.

The order follows two rules. An end comes before a start, because no pod may be created for a job
that is about to end or to wait. Among the ends, an outcome without a further attempt comes before
an outcome with one. `_decide` calls one policy after another and states the reason for the order.
Policies only read the observed state (`World`) and return plans, so `decide` is a pure function.

Two parts of each plan do not come from a policy: `_with_observation` adds the observed fields of
the status, and each status write advances the goodput ledger.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ddp_operator.api.status import ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.defaults import Defaults
from ddp_operator.reconcile import (
    backoff,
    budgets,
    checkpoint_owner,
    departures,
    elastic,
    ended_attempts,
    escalation,
    exits,
    gangs,
    goodput,
    gpu_products,
    hangs,
    host_ports,
    init_state,
    init_steps,
    late_cause,
    lifecycle,
    new_attempt,
    queueing,
    recovery,
    refused_spec,
    resizes,
)
from ddp_operator.reconcile.children import ensure_attempt
from ddp_operator.reconcile.conditions import (
    active_conditions,
    sentence_about,
)
from ddp_operator.reconcile.fault import Fault
from ddp_operator.reconcile.faults import find_faults
from ddp_operator.reconcile.forbidden_pods import without_forbidden_pods
from ddp_operator.reconcile.held_pods import held_sentence
from ddp_operator.reconcile.images import mixed_image_events
from ddp_operator.reconcile.kstatus import with_kstatus_conditions
from ddp_operator.reconcile.next_action import next_action
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.pod_view import STOPPED_BY_QUEUE
from ddp_operator.reconcile.progress import seconds_until_due, with_progress
from ddp_operator.reconcile.restored import with_reported_attempt
from ddp_operator.reconcile.root_cause import find_root_cause
from ddp_operator.reconcile.world import World
from ddp_wire import node_ranges
from ddp_wire.messages import AgentPhase

RUNNING_REQUEUE_SECONDS = 5.0
"""Shortest reconcile interval, in seconds, while an attempt trains and reports progress."""
ROOT_CAUSE_REQUEUE_SECONDS = 0.3
"""Reconcile interval, in seconds, while the root cause of the faults is unknown."""


def decide(world: World, defaults: Defaults) -> Plan:
    """Return the plan for a job from its observed state."""
    if world.job.metadata.deletion_timestamp is not None:
        return Plan(world.job.status)  # The garbage collector deletes its children.
    world, restored = with_reported_attempt(world)
    plan = without_forbidden_pods(world, _decide(world, defaults), defaults)
    plan = replace(plan, events=(*restored, *plan.events))
    plan = _with_observation(world, plan)
    if plan.status == world.job.status:
        return plan  # Elapsed time and derived conditions alone do not change the status.
    status = goodput.advance(world, plan.status)
    generation = world.job.metadata.generation
    return replace(plan, status=with_kstatus_conditions(status, world.now, generation))


def _decide(world: World, defaults: Defaults) -> Plan:
    status = world.job.status
    # An end is final: nothing that is observed afterwards may start the job again.
    if lifecycle.is_finished(status):
        return lifecycle.after_finish(world)
    is_current = status.attempt_spec_hash == world.job.spec_hash
    # Done work counts, even if the job is suspended or a deadline passes before the operator looks.
    if is_current and (completed := _completion(world)) is not None:
        return completed
    # A suspended job starts nothing, so this comes before all that starts or replaces pods.
    if world.job.spec.suspend:
        return lifecycle.suspend(world)
    # Another attempt with the refused spec would fail in the same way.
    if status.attempt_spec_hash is None and refused_spec.is_waiting(world):
        return refused_spec.wait_for_edit(world)
    # Pods of an older spec are replaced, so neither their deadlines nor their faults count.
    if not is_current:
        return _begin(world, defaults)
    # Pods of a gang that can never be placed again are replaced, like those of an older spec.
    if (why := gangs.why_replaced(world)) is not None:
        return new_attempt.restart_with_new_gang(world, why, defaults)
    # A deadline also holds during the backoff and across retries, so it comes before both.
    exceeded = lifecycle.exceeded_deadline(world)
    if exceeded is not None:
        return _fail_by_deadline(world, *exceeded)
    return _decide_running(world, defaults)


def _decide_running(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a job whose current attempt continues, or handle the attempt's faults."""
    status = world.job.status
    # The next fault must find the budgets as they are after this correction.
    if (corrected := late_cause.correct(world)) is not None:
        return corrected
    # The attempt has not started, so what its pods show belongs to the previous one.
    wait = backoff.remaining(status, world.now)
    if wait > timedelta(0):
        return Plan(status, requeue_seconds=wait.total_seconds())
    # A fault ends the attempt, so it comes before the actions that complete its pods.
    faults = find_faults(world)
    if faults:
        return _handle_faults(world, faults, defaults)
    # A resize stops healthy ranks, so it comes after the faults, which the ranks cannot survive.
    if (change := elastic.due(world)) is not None:
        return new_attempt.resize(world, change, defaults)
    return _continue_attempt(world, status, defaults)


def _begin(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a job that has no attempt with the current spec."""
    # Two jobs must not write to one directory, so the wait comes before any start.
    if world.checkpoint_owner is not None:
        return checkpoint_owner.wait(world, world.checkpoint_owner)
    # The ranks need what the steps fetch.
    if init_state.is_due(world.job):
        return init_steps.run(world, defaults)
    # Pods need their ports before they exist.
    if host_ports.lacks_ports(world, defaults):
        return host_ports.wait(world, defaults)
    if world.job.status.attempt_spec_hash is None:
        return new_attempt.start_or_resume(world, defaults)
    return new_attempt.restart_for_new_spec(world, defaults)


def _completion(world: World) -> Plan | None:
    """Return the plan that completes the job, or None.

    Ranks that have finished their work may exit by themselves. If they cannot exit, the job is
    still complete, because a new attempt would only find a finished run.
    """
    if _all_succeeded(world):
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


def _all_succeeded(world: World) -> bool:
    """Return whether every rank of the attempt exited with 0 and every container has ended."""
    return world.succeeded >= set(world.members)


def _fail_by_deadline(world: World, reason: str, message: str) -> Plan:
    """Return the plan that fails the job because a deadline has passed."""
    status = ended_attempts.with_ended_attempt(
        world.job.status, world.now, cause=None, reason=reason, message=message
    )
    event = Event(EventType.WARNING, reason, message)
    plan = lifecycle.finish(world, status, succeeded=False, reason="Failed", message=message)
    return Plan(plan.status, events=(event,), requeue_seconds=0)


def _handle_faults(world: World, faults: Sequence[Fault], defaults: Defaults) -> Plan:
    """Return the plan that ends a faulty attempt, and starts the next one or fails the job."""
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
    if failure.reason != STOPPED_BY_QUEUE:  # The queue decides when it admits the pods again.
        status = backoff.count_attempt(world, status)
    status = recovery.start_trace(status, failure, now)
    when = new_attempt.when_it_starts(status, now)
    text = f"attempt {status.attempt + 1} starts{when} because {failure.message}"
    event = Event(EventType.WARNING, "Restarting", text)
    status = departures.with_departures(status, elastic.lost_nodes(world), now)
    members = elastic.after_fault(world)
    status = resizes.with_resize(world, status, members, failure.message)
    return new_attempt.start_next(world, status, (event,), defaults, members)


def _complete(world: World, interrupted_by: str = "") -> Plan:
    """Return the plan that completes the job.

    Args:
        world: The observed state of the job. All ranks have exited, or have finished their work.
        interrupted_by: Message about the reason why ranks cannot exit by themselves, or "".
    """
    status = with_progress(world, world.job.status, at_the_end=True)
    problems = exits.exit_events(world)
    how = "have done their work" if problems or interrupted_by else "exited with code 0"
    end = f"; while they exited, {interrupted_by}" if interrupted_by else ""
    message = f"all {world.ranks} ranks of attempt {status.attempt} {how}{end}"
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
    status = status.model_copy(update={"spares": elastic.ready_spares(world)})
    status = resizes.with_completed_resize(world, status)
    status = queueing.with_hold(world, refused_spec.with_trained_spec(world, status))
    succeeded = node_ranges.to_text(world.succeeded) or None
    status = status.model_copy(update={"succeeded_nodes": succeeded})
    status, mixed_products = gpu_products.with_gpu_product(world, status)
    events = [*mixed_products]
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
        text = f"attempt {status.attempt} trains {after}; status.lastRecovery shows each part"
        events.append(Event(EventType.NORMAL, "Recovered", text))
    events += resizes.resize_events(world, status)
    held = held_sentence(world)
    # While other pods train, the summary does not name the held pod.
    if held is not None and _tells(status, held) and not _tells(world.job.status, held):
        events.append(Event(EventType.WARNING, "PodHeld", held))
    events += [*hangs.suspect_events(world, status), *gangs.warnings(world.job.status, status)]
    slow = status.straggler
    if slow is not None and (old_straggler is None or old_straggler.rank != slow.rank):
        events.append(Event(EventType.WARNING, "Straggler", sentence_about(slow)))
    actions = ensure_attempt(world, status, defaults)
    return Plan(status, tuple(actions), tuple(events), _requeue_seconds(world, status))


def _tells(status: DDPJobStatus, sentence: str) -> bool:
    """Return whether the MESSAGE column contains a sentence."""
    summary = status.condition(ConditionType.SUCCEEDED)
    return summary is not None and sentence in summary.message


def _requeue_seconds(world: World, status: DDPJobStatus) -> float:
    is_training = status.is_true(ConditionType.PODS_READY) or elastic.trains(world, status)
    deadline = lifecycle.seconds_to_deadline(world, status)
    has_progress = world.job.spec.task is None or status.progress is not None
    seconds = new_attempt.STARTING_REQUEUE_SECONDS
    if is_training and has_progress:
        # Changes of pods and agents wake the job earlier, so only its progress can become due.
        seconds = max(RUNNING_REQUEUE_SECONDS, world.progress_interval.total_seconds())
    ended = (AgentPhase.SUCCEEDED, AgentPhase.FAILED)
    if any(r.phase in ended for r in world.agent_statuses.values()):
        seconds = new_attempt.STARTING_REQUEUE_SECONDS
    earlier = (
        seconds,
        deadline,
        seconds_until_due(world, status),
        elastic.seconds_until_due(world),
    )
    return min(one for one in earlier if one is not None)


def _with_observation(world: World, plan: Plan) -> Plan:
    """Return the plan with the status fields that every reconcile sets from the observed state."""
    status = plan.status.model_copy(
        update={
            "observed_generation": world.job.metadata.generation,
            "replicas": len(world.pods),
            "selector": _selector(world),
            "first_pod": _first_pod(world),
            "next_action": next_action(world, plan),
        }
    )
    return replace(plan, status=status)


def _first_pod(world: World) -> str | None:
    """Return the name of the pod of node 0, or None if it is the usual one."""
    pod = world.pod(0)
    return pod.name if pod is not None and pod.generation > 1 else None


def _selector(world: World) -> str:
    return ",".join(f"{k}={v}" for k, v in names.pod_selector(world.job).items())
