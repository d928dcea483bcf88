"""Apply the policies of a job's life cycle: suspension, deadlines, completion and clean-up."""

from datetime import datetime, timedelta

from ddp_operator.api.spec import CleanPodPolicy
from ddp_operator.api.status import Cause, ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile import ended_attempts, init_state, queueing
from ddp_operator.reconcile.children import delete_pods, end_pods
from ddp_operator.reconcile.claims import change_claim
from ddp_operator.reconcile.conditions import SUSPENDED, ConditionWriter
from ddp_operator.reconcile.gangs import release_groups
from ddp_operator.reconcile.plan import DeleteJob, Event, EventType, Plan
from ddp_operator.reconcile.progress import with_progress
from ddp_operator.reconcile.world import World


def is_finished(status: DDPJobStatus) -> bool:
    """Return whether the job has completed or has failed for good."""
    summary = status.condition(ConditionType.SUCCEEDED)
    return summary is not None and summary.status is not ConditionStatus.UNKNOWN


def finish(
    world: World, status: DDPJobStatus, *, succeeded: bool, reason: str, message: str
) -> Plan:
    """Return the plan that completes or fails a job."""
    out = ConditionWriter(world, status)
    wanted = world.job.nodes
    out.set(ConditionType.PODS_READY, False, reason, message)
    out.set(ConditionType.SUCCEEDED, succeeded, reason, message)
    out.set(ConditionType.COMPLETE if succeeded else ConditionType.FAILED, True, reason, message)
    ended = out.status.model_copy(
        update={
            "completion_time": world.now.replace(microsecond=0),
            "ready": f"0/{wanted}",
            "suspect": None,
        }
    )
    ended = queueing.with_ended_hold(ended, world.now)
    severity = EventType.NORMAL if succeeded else EventType.WARNING
    # The next reconcile finds a finished job and cleans up its pods.
    return Plan(ended, events=(Event(severity, reason, message),), requeue_seconds=0)


def after_finish(world: World) -> Plan:
    """Return the plan of a finished job: stop or delete its pods, then delete it after its TTL."""
    status, spec = world.job.status, world.job.spec
    deletes = spec.clean_pod_policy is CleanPodPolicy.ALL
    pods = delete_pods(world) if deletes else end_pods(world)
    actions = [*pods, *release_groups(world), *change_claim(world)]
    status = status.model_copy(update={"replicas": len(world.pods)})
    status = _with_released_ports(world, status)
    ttl = spec.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return Plan(status, tuple(actions))
    left = _seconds_left(status.completion_time, ttl, world.now)
    if left > 0:
        return Plan(status, tuple(actions), requeue_seconds=left)
    return Plan(status, (DeleteJob(world.job.metadata.uid),))


def suspend(world: World) -> Plan:
    """Return the plan that stops the pods. The end of the attempt uses no budget."""
    status = init_state.with_interrupted_try(world, "the job was suspended")
    status = with_progress(world, status, at_the_end=True)
    if status.attempt_spec_hash is not None:
        # The first reconcile ends the attempt. Later ones wait until its pods have saved and ended.
        status = ended_attempts.with_ended_attempt(
            status, world.now, cause=Cause.FREE, reason=SUSPENDED, message="spec.suspend was set"
        )
    status = ended_attempts.with_last_step(status)
    out = ConditionWriter(world, status)
    gone = not world.pods and all(pod.terminal for pod in world.init_pods)
    progress = "all pods have ended" if gone else "the pods are saving and stopping"
    message = f"spec.suspend is true and {progress}"
    out.set(ConditionType.SUCCEEDED, None, SUSPENDED, message)
    out.set(ConditionType.SUSPENDED, gone, "SuspendRequested", message)
    out.set(ConditionType.PODS_READY, False, SUSPENDED, message)
    out.set(ConditionType.RENDEZVOUSED, False, SUSPENDED, message)
    if status.condition(ConditionType.GANG_SCHEDULED) is not None:
        out.set(ConditionType.GANG_SCHEDULED, False, SUSPENDED, message)
    status = out.status.model_copy(
        update={
            "ready": f"0/{world.job.spec.nodes}",
            "replicas": len(world.pods),
            # Resumption restarts the clock of activeDeadlineSeconds, as for a batch Job.
            "start_time": None,
            "queue": None,
            "attempt_spec_hash": None,
            "refused_spec_hash": None,  # Resumption tries again: an input may have changed.
        }
    )
    status = _with_released_ports(world, status)
    return Plan(status, (*delete_pods(world), *release_groups(world), *change_claim(world)))


def _with_released_ports(world: World, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status without the block of host ports once no container of the job runs."""
    if status.pods is None or status.pods.first_port is None:
        return status
    if any(not pod.terminal or pod.lingers for pod in world.pods):
        return status
    pods = status.pods.model_copy(update={"first_port": None})
    return status.model_copy(update={"pods": pods})


def exceeded_deadline(world: World) -> tuple[str, str] | None:
    """Return reason and message for the deadline that has passed, or None."""
    status, spec, now = world.job.status, world.job.spec, world.now
    if (exceeded := exceeded_active_deadline(world)) is not None:
        return "DeadlineExceeded", exceeded
    left = _seconds_to_startup_deadline(world, status)
    if left is not None and left <= 0:
        summary = status.condition(ConditionType.SUCCEEDED)
        seen = f": {summary.message}" if summary is not None and summary.message else ""
        held = _held_words(queueing.held_in_attempt(status, now))
        limit = f"startupDeadlineSeconds ({spec.startup_deadline_seconds}){held}"
        message = f"attempt {status.attempt} did not start training within {limit}"
        return "StartupDeadlineExceeded", message + seen
    return None


def exceeded_active_deadline(world: World) -> str | None:
    """Return the message about activeDeadlineSeconds if that deadline has passed, or None."""
    status, seconds = world.job.status, world.job.spec.active_deadline_seconds
    left = seconds_to_active_deadline(world, status)
    if left is None or left > 0:
        return None
    held = _held_words(queueing.held_in_job(status, world.now))
    return f"the job was active for longer than activeDeadlineSeconds ({seconds}){held}"


def _held_words(held: timedelta) -> str:
    seconds = held // timedelta(seconds=1)
    why = "in which a gate, a queue or a quota held its pods"
    return f", not counting the {seconds} s {why}" if seconds else ""


def seconds_to_deadline(world: World, status: DDPJobStatus) -> float | None:
    """Return the seconds until the next deadline of an active job, or None without one."""
    both = seconds_to_active_deadline(world, status), _seconds_to_startup_deadline(world, status)
    left = [seconds for seconds in both if seconds is not None]
    return max(0.1, min(left)) if left else None


def seconds_to_active_deadline(world: World, status: DDPJobStatus) -> float | None:
    """Return the seconds until activeDeadlineSeconds has passed, or None without this deadline."""
    limit = world.job.spec.active_deadline_seconds
    if limit is None or status.start_time is None:
        return None
    held = queueing.held_in_job(status, world.now)
    return _seconds_left(status.start_time + held, limit, world.now)


def _seconds_to_startup_deadline(world: World, status: DDPJobStatus) -> float | None:
    limit, start = world.job.spec.startup_deadline_seconds, status.attempt_start_time
    if limit is None or start is None or status.is_true(ConditionType.RENDEZVOUSED):
        return None
    return _seconds_left(start + queueing.held_in_attempt(status, world.now), limit, world.now)


def _seconds_left(since: datetime, seconds: int, now: datetime) -> float:
    return (since + timedelta(seconds=seconds) - now).total_seconds()
