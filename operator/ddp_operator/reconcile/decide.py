"""The policies in their order: from what was observed to what shall be."""

from collections.abc import Sequence

from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults
from ddp_operator.reconcile import budgets, history, ladder, life, recovery
from ddp_operator.reconcile.attempts import Loss, find_losses, root_cause
from ddp_operator.reconcile.children import ensure_attempt
from ddp_operator.reconcile.conditions import ConditionWriter, active_conditions
from ddp_operator.reconcile.outlook import next_action
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.progress import with_progress
from ddp_operator.reconcile.world import World, ended_in
from ddp_wire.contract import AgentPhase

STARTING_LOOK_SECONDS = 1.0
"""How often the agents of an attempt that does not train yet are asked."""
RUNNING_LOOK_SECONDS = 5.0
"""How often the progress of a training attempt is read."""
CAUSE_LOOK_SECONDS = 0.3


def decide(world: World, defaults: Defaults) -> Plan:
    """What shall be done about a job, given what was observed of it."""
    if world.job.metadata.deletion_timestamp is not None:
        return Plan(world.job.status)  # Its children follow by ownership.
    return _observed(world, _decide(world, defaults))


def _decide(world: World, defaults: Defaults) -> Plan:
    if life.is_finished(world.job.status):
        return life.after_finish(world)
    if world.job.spec.suspend:
        return life.suspend(world)
    status = world.job.status
    if status.attempt_spec_hash is None:
        return _begin(world, defaults)
    if status.attempt_spec_hash != world.job.spec_hash:
        return _respecified(world, defaults)
    broken = life.broken_deadline(world)
    if broken is not None:
        return _late(world, *broken)
    losses = find_losses(world)
    if losses:
        return _lost(world, losses, defaults)
    if all_succeeded(world):
        return _completed(world)
    return _carry_on(world, status, defaults)


def all_succeeded(world: World) -> bool:
    """Whether every rank of the current attempt exited 0 and no container runs any more."""
    pods = [world.pod(index) for index in range(world.job.spec.nodes)]
    status = world.job.status
    return all(p is not None and p.phase == "Succeeded" and ended_in(p, status) for p in pods)


def _begin(world: World, defaults: Defaults) -> Plan:
    """The first attempt, or the first after a suspension."""
    status = world.job.status
    resumed = status.attempt > 0
    text = f"attempt {status.attempt + 1} begins with {world.job.spec.nodes} pods"
    event = Event(EventType.NORMAL, "Resumed" if resumed else "Started", text)
    if resumed:
        status = budgets.charged(status, Cause.FREE, world.now)
    status = status.model_copy(update={"start_time": world.now.replace(microsecond=0)})
    if status.is_true(ConditionType.SUSPENDED):
        out = ConditionWriter(world, status)
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
        status = out.status
    return _new_attempt(world, status, (event,), defaults)


def _respecified(world: World, defaults: Defaults) -> Plan:
    """The part of the spec that pods are made of was edited: a new attempt, which costs nothing."""
    status = world.job.status
    text = f"attempt {status.attempt + 1} follows because the spec was changed"
    event = Event(EventType.NORMAL, "SpecChanged", text)
    status = history.ended(
        status, world.now, cause=Cause.FREE, reason="SpecChanged", message="the spec was changed"
    )
    status = budgets.charged(status, Cause.FREE, world.now)
    # What did not get on may do so as it is asked for now.
    status = status.model_copy(update={"stalled_attempts": 0})
    return _new_attempt(world, status, (event,), defaults)


def _late(world: World, reason: str, message: str) -> Plan:
    """A deadline has passed: the job fails."""
    status = history.ended(world.job.status, world.now, cause=None, reason=reason, message=message)
    event = Event(EventType.WARNING, reason, message)
    plan = life.finish(world, status, succeeded=False, reason="Failed", message=message)
    return Plan(plan.status, events=(event,), requeue_seconds=0)


def _lost(world: World, losses: Sequence[Loss], defaults: Defaults) -> Plan:
    """The attempt is over: another one follows, or the job fails."""
    loss = root_cause(list(losses), world)
    if loss is None:
        return Plan(world.job.status, requeue_seconds=CAUSE_LOOK_SECONDS)
    failure, now = loss.failure, world.now
    status = with_progress(world, world.job.status, at_the_end=True)
    status = status.model_copy(update={"last_failure": failure})
    status = ladder.climbed(world.job, status, loss, losses, now)
    status = history.ended(
        status, now, cause=failure.cause, reason=failure.reason, message=failure.message
    )
    no_more = budgets.why_no_more(world.job, status, loss, now)
    if no_more is not None:
        message = f"{failure.message} {no_more}"
        return life.finish(world, status, succeeded=False, reason="Failed", message=message)
    status = budgets.charged(status, failure.cause, now)
    status = recovery.opened(status, failure, now)
    text = f"attempt {status.attempt + 1} follows because {failure.message}"
    event = Event(EventType.WARNING, "Restarting", text)
    return _new_attempt(world, status, (event,), defaults)


def _new_attempt(
    world: World, status: DDPJobStatus, events: tuple[Event, ...], defaults: Defaults
) -> Plan:
    """Count up: the status is written before anything of the new attempt is acted on."""
    attempt = status.attempt + 1
    status = status.model_copy(
        update={
            "attempt": attempt,
            "attempt_start_time": world.now.replace(microsecond=0),
            "attempt_spec_hash": world.job.spec_hash,
            "attempt_start_step": ladder.newest_step(status),
        }
    )
    out = ConditionWriter(world, status)
    text = f"attempt {attempt}"
    out.set(ConditionType.RENDEZVOUSED, False, "WaitingForRanks", text)
    out.set(ConditionType.PODS_READY, False, "NotReady", text)
    out.status = out.status.model_copy(update={"ready": f"0/{world.job.spec.nodes}"})
    if status.last_failure is not None and status.last_failure.attempt == attempt - 1:
        message = f"attempt {attempt} follows because {status.last_failure.message}"
        out.set(ConditionType.SUCCEEDED, None, "Recovering", message)
    else:
        out.set(ConditionType.SUCCEEDED, None, "Pending", f"attempt {attempt} begins")
    actions = ensure_attempt(world, out.status, defaults)
    return Plan(out.status, tuple(actions), events, STARTING_LOOK_SECONDS)


def _completed(world: World) -> Plan:
    status = with_progress(world, world.job.status, at_the_end=True)
    ranks = world.job.spec.nodes * world.job.spec.ranks_per_node
    message = f"all {ranks} ranks of attempt {status.attempt} exited 0"
    status = ladder.noted(status)
    status = history.ended(status, world.now, cause=None, reason="Completed", message=message)
    return life.finish(world, status, succeeded=True, reason="Completed", message=message)


def _carry_on(world: World, status: DDPJobStatus, defaults: Defaults) -> Plan:
    before = status.resumed_from_step
    was_formed = status.is_true(ConditionType.RENDEZVOUSED)
    was_traced = status.last_recovery
    status = active_conditions(world, ladder.noted(with_progress(world, status)))
    status = recovery.traced(world, status)
    events = []
    if status.is_true(ConditionType.RENDEZVOUSED) and not was_formed:
        text = f"all ranks of attempt {status.attempt} train"
        events.append(Event(EventType.NORMAL, "Running", text))
    if status.resumed_from_step is not None and status.resumed_from_step != before:
        text = f"attempt {status.attempt} resumed from step {status.resumed_from_step}"
        events.append(Event(EventType.NORMAL, "ResumedFromCheckpoint", text))
    if status.last_recovery is not None and status.last_recovery is not was_traced:
        text = f"attempt {status.attempt} goes on after {status.last_recovery.summary}"
        events.append(Event(EventType.NORMAL, "Recovered", text))
    actions = ensure_attempt(world, status, defaults)
    requeue = _next_look(world, status)
    return Plan(status, tuple(actions), tuple(events), requeue)


def _next_look(world: World, status: DDPJobStatus) -> float:
    trains = status.is_true(ConditionType.PODS_READY)
    deadline = life.seconds_to_deadline(world, status)
    reports = world.job.spec.task is None or status.progress is not None
    look = RUNNING_LOOK_SECONDS if trains and reports else STARTING_LOOK_SECONDS
    ended = (AgentPhase.SUCCEEDED, AgentPhase.FAILED)
    if any(r.phase in ended for r in world.reports.values()):
        look = STARTING_LOOK_SECONDS
    return look if deadline is None else min(look, deadline)


def _observed(world: World, plan: Plan) -> Plan:
    """The plan, its status marked with the generation that it speaks of."""
    status = plan.status.model_copy(
        update={
            "observed_generation": world.job.metadata.generation,
            "replicas": len(world.pods),
            "selector": _selector(world),
            "next_action": next_action(world, plan),
        }
    )
    return Plan(status, plan.actions, plan.events, plan.requeue_seconds)


def _selector(world: World) -> str:
    return ",".join(f"{k}={v}" for k, v in names.pod_selector(world.job).items())
