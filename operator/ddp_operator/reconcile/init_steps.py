"""Run the init steps of a job, one after another, before its first attempt.

Each try of a step has its own pod, whose name contains the number of the try. The status is written
before the pod is created, so a restarted operator continues with the same try, and a completed step
never runs again. No two pods of init steps run at the same time, and none beside the worker pods,
because they write to the same volumes.

A failed try uses one of the step's `maxRetries`. A lost pod uses none. Either way the next try
waits, and the files of the earlier tries are still there.
"""

from dataclasses import dataclass
from datetime import timedelta

from ddp_operator.api.init import InitStatus
from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus, FailureStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.init_pod import build_init_pod
from ddp_operator.limits import ATTEMPT_DELAY
from ddp_operator.reconcile import claims, init_state, lifecycle, queueing
from ddp_operator.reconcile.abandoned import is_abandoned
from ddp_operator.reconcile.children import delete_init_pod, delete_pods, ensure_other_children
from ddp_operator.reconcile.conditions import INVALID, ConditionWriter, blocked_reason, is_stuck
from ddp_operator.reconcile.plan import Action, EnsureChild, Event, EventType, Plan
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.reconcile.waiting import without_attempt
from ddp_operator.reconcile.world import World
from ddp_wire.exit_codes import ExitCode

INIT_FAILED = "InitFailed"
"""Reason of the failure of a job whose init step has failed too often."""
_REQUEUE_SECONDS = 5.0
"""Reconcile interval, in seconds, while a step runs. Its pod's changes wake the job earlier."""


@dataclass(frozen=True)
class _End:
    """End of a try of a step without success."""

    message: str
    failed: bool
    """Whether the step failed, and not only its pod or Kubernetes node."""
    exit_code: int | None = None


def run(world: World, defaults: Defaults) -> Plan:
    """Return the plan of a job with an init step that has not completed yet."""
    job = world.job
    status = job.status
    if status.attempt_spec_hash is not None:  # An edit of the steps ends the attempt.
        # The deadline goes on, and the holds before the edit do not count against it either.
        holds = queueing.of_next_attempt(status, world.now)
        kept = {"start_time": status.start_time, "queue": holds}
        status = without_attempt(world).model_copy(update=kept)
    if status.start_time is None:
        status = status.model_copy(update={"start_time": world.now.replace(microsecond=0)})
    elif (exceeded := lifecycle.exceeded_active_deadline(world)) is not None:
        return _fail(world, status, "DeadlineExceeded", exceeded)
    done = init_state.progress(job)
    if done is None:
        done = init_state.first_try(job, 0, world.now)
    pod = init_state.current_pod(world, done)
    status = queueing.with_init_hold(world, status, pod)
    if pod is not None and pod.phase == "Succeeded":
        return _complete_step(world, status, done)
    if pod is not None and (end := _end_of(pod)) is not None:
        return _end_try(world, status, done, pod, end)
    return _continue(world, status, done, defaults)


def _end_of(pod: PodView) -> _End | None:
    """Return how the try of a pod ended without success, or None while it goes on."""
    termination = pod.termination
    if pod.deleting or pod.disruption is not None:
        return _End(f"{pod.name} was lost ({pod.disruption or 'deleted'})", failed=False)
    if termination is not None:
        why = f" ({termination.reason})" if termination.reason not in {"", "Error"} else ""
        words = f": {termination.words}" if termination.words else ""
        code = termination.exit_code
        return _End(f"it ended with exit code {code}{why}{words}", failed=True, exit_code=code)
    if pod.phase == "Failed":
        why = ": ".join(part for part in (pod.reason, pod.message) if part) or "no reason is known"
        return _End(f"{pod.name} was lost ({why})", failed=False)
    return None


def _complete_step(world: World, status: DDPJobStatus, done: InitStatus) -> Plan:
    after = init_state.first_try(world.job, done.completed + 1, world.now)
    text = f"init step {_label(world, done)} has completed"
    status = _shown(world, status.model_copy(update={"init": after}), "Pending", text)
    event = Event(EventType.NORMAL, "InitStepCompleted", text)
    return Plan(status, events=(event,), requeue_seconds=0)


def _end_try(world: World, status: DDPJobStatus, done: InitStatus, pod: PodView, end: _End) -> Plan:
    """Return the plan that starts the next try of a step, or fails the job."""
    label, step = _label(world, done), init_state.current_step(world.job, done)
    spent = end.failed and done.failures >= step.max_retries
    wrong = end.exit_code == ExitCode.BAD_INPUT and step.task is not None
    if spent or wrong:
        why = "exit code 2 means invalid input" if wrong else f"maxRetries is {step.max_retries}"
        message = f"init step {label} failed: {end.message} (it is not retried: {why})"
        failure = FailureStatus(
            attempt=status.attempt,
            reason=INIT_FAILED,
            cause=Cause.APPLICATION,
            pod=pod.name,
            node=pod.node,
            exit_code=end.exit_code,
            message=message,
            time=world.now.replace(microsecond=0),
        )
        update = {"init": done.model_copy(update={"failures": done.failures + 1})}
        status = status.model_copy(update=update | {"last_failure": failure})
        return _fail(world, status, INIT_FAILED, message)
    again = init_state.next_try(done, world.now, end.message, failed=end.failed)
    text = (
        f"init step {label} starts again at {again.start_time:%H:%M:%S} UTC because {end.message}"
    )
    status = _shown(world, status.model_copy(update={"init": again}), "Pending", text)
    kind = EventType.WARNING if end.failed else EventType.NORMAL
    return Plan(status, events=(Event(kind, "InitStepRetried", text),), requeue_seconds=0)


def _continue(world: World, status: DDPJobStatus, done: InitStatus, defaults: Defaults) -> Plan:
    """Return the plan that prepares, creates or follows the pod of the current try."""
    status = status.model_copy(update={"init": done})
    label, pod = _label(world, done), init_state.current_pod(world, done)
    others = [one for one in world.init_pods if one is not pod and not one.terminal]
    ends = [*delete_pods(world, with_init=False), *_old_pods(world, done)]
    if busy := sorted(one.name for one in (*world.pods, *others) if not one.terminal):
        text = f"init step {label} waits for {', '.join(busy[:3])} to end"
        return Plan(_shown(world, status, "Pending", text), tuple(ends), requeue_seconds=1.0)
    # The pod must not start with a claim that is not the job's.
    children = ensure_other_children(world, defaults)
    wait = _seconds_to_start(world, done)
    actions: list[Action] = [*ends, *children]
    if pod is None and wait <= 0 and not any(isinstance(a, EnsureChild) for a in children):
        step = init_state.current_step(world.job, done)
        actions.append(EnsureChild(build_init_pod(world.job, step, done.tries, defaults)))
    reason, text = _summary(world, done, pod, label, wait)
    seconds = 1.0 if pod is None else _REQUEUE_SECONDS
    deadline = lifecycle.seconds_to_active_deadline(world, status)
    wake = min(one for one in (wait if wait > 0 else seconds, deadline) if one is not None)
    return Plan(_shown(world, status, reason, text), tuple(actions), requeue_seconds=max(0.1, wake))


def _old_pods(world: World, done: InitStatus) -> list[Action]:
    """Return the deletions of all pods of init steps that this try must not find, or that are old.

    Ended pods of completed steps and of the previous try stay for their logs.
    """
    current = init_state.current_pod(world, done)
    actions: list[Action] = []
    for pod in world.init_pods:
        of_spec = pod.spec_hash == done.spec_hash
        previous = pod.name.endswith(f"-{done.tries - 1}")
        kept = pod.terminal and of_spec and (pod.init_step != done.step or previous)
        if pod is not current and not kept:
            actions += delete_init_pod(pod, by_force=is_abandoned(world, pod))
    return actions


def _seconds_to_start(world: World, done: InitStatus) -> float:
    """Return the seconds until the current try may start; 0 or less if it may start now.

    If the time is longer than the delay, the clock was set back, and the try may start.
    """
    if done.start_time is None:
        return 0.0
    left = done.start_time - world.now
    longest = timedelta(seconds=ATTEMPT_DELAY.after(done.tries - 1) + 1)
    return 0.0 if left > longest else left.total_seconds()


def _summary(
    world: World, done: InitStatus, pod: PodView | None, label: str, wait: float
) -> tuple[str, str]:
    """Return the values of the STATUS and MESSAGE columns while a step is prepared or runs."""
    if world.blocked is not None:
        return INVALID if claims.is_name_taken(world.blocked) else "Pending", world.blocked
    again = f" again because {done.message}" if done.message else ""
    if pod is None:
        when = f" at {done.start_time:%H:%M:%S} UTC" if wait > 0 else ""
        starts = again.replace(" again", f" again{when}", 1) if again else when
        return "Pending", f"init step {label} starts{starts}"
    if pod.phase == "Pending":
        waits = pod.waiting if pod.waiting is not None and is_stuck(pod) else "its pod starts"
        claim = claims.why_it_waits(world)
        end = f"; {claim}" if claim else ""
        return "Pending", f"init step {label} waits in {pod.name}: {waits}{end}"
    count = f", try {done.tries}" if done.tries > 1 else ""
    return "Starting", f"init step {label} is running in {pod.name}{count}"


def _shown(world: World, status: DDPJobStatus, reason: str, message: str) -> DDPJobStatus:
    """Return the status with the conditions of a job whose init steps have not completed."""
    out = ConditionWriter(world, status)
    pods_reason = blocked_reason(world.blocked) if world.blocked is not None else "Initializing"
    out.set(ConditionType.PODS_READY, False, pods_reason, message)
    if status.condition(ConditionType.RENDEZVOUSED) is not None:
        out.set(ConditionType.RENDEZVOUSED, False, "Initializing", message)
    if status.is_true(ConditionType.SUSPENDED):
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
    if (claim := claims.report(world)) is not None:
        out.set(ConditionType.CLAIM_BOUND, claim.bound, claim.reason, claim.message)
    out.set(ConditionType.SUCCEEDED, None, reason, message)
    return out.status.model_copy(update={"ready": f"0/{world.job.spec.nodes}"})


def _fail(world: World, status: DDPJobStatus, reason: str, message: str) -> Plan:
    plan = lifecycle.finish(world, status, succeeded=False, reason="Failed", message=message)
    event = Event(EventType.WARNING, reason, message)
    return Plan(plan.status, events=(event,), requeue_seconds=0)


def _label(world: World, done: InitStatus) -> str:
    """Return the name of the current step with its place, for messages."""
    steps = world.job.spec.init or []
    place = f" ({done.completed + 1} of {len(steps)})" if len(steps) > 1 else ""
    return f"{done.step}{place}"
