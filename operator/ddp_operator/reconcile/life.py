"""The policies about a job's life: suspension, deadlines, the end and what follows it."""

from datetime import datetime, timedelta

from ddp_operator.api.spec import CleanPodPolicy
from ddp_operator.api.status import Cause, ConditionStatus, ConditionType, DDPJobStatus
from ddp_operator.reconcile import history
from ddp_operator.reconcile.children import delete_pods, stop_pods
from ddp_operator.reconcile.conditions import ConditionWriter
from ddp_operator.reconcile.plan import Action, DeleteJob, Event, EventType, Plan
from ddp_operator.reconcile.world import World


def is_finished(status: DDPJobStatus) -> bool:
    """Whether the job has completed or failed for good."""
    summary = status.condition(ConditionType.SUCCEEDED)
    return summary is not None and summary.status is not ConditionStatus.UNKNOWN


def finish(
    world: World, status: DDPJobStatus, *, succeeded: bool, reason: str, message: str
) -> Plan:
    """The plan that ends a job."""
    out = ConditionWriter(world, status)
    wanted = world.job.spec.nodes
    out.set(ConditionType.PODS_READY, False, reason, message)
    out.set(ConditionType.SUCCEEDED, succeeded, reason, message)
    ended = out.status.model_copy(
        update={"completion_time": world.now.replace(microsecond=0), "ready": f"0/{wanted}"}
    )
    kind = EventType.NORMAL if succeeded else EventType.WARNING
    # The pods are dealt with by the next look, which finds a finished job.
    return Plan(ended, events=(Event(kind, reason, message),), requeue_seconds=0)


def after_finish(world: World) -> Plan:
    """What is left for a finished job: its pods end; it is deleted when its time is up."""
    status, spec = world.job.status, world.job.spec
    actions: list[Action] = []
    if spec.clean_pod_policy is CleanPodPolicy.ALL:
        actions = delete_pods(world)
    elif not status.is_true(ConditionType.SUCCEEDED):
        actions = stop_pods(world)
    status = status.model_copy(update={"replicas": len(world.pods)})
    ttl = spec.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return Plan(status, tuple(actions))
    left = _left(status.completion_time, ttl, world.now)
    if left > 0:
        return Plan(status, tuple(actions), requeue_seconds=left)
    return Plan(status, (DeleteJob(world.job.metadata.uid),))


def suspend(world: World) -> Plan:
    """Stop the pods; the attempt ends and costs nothing."""
    status = world.job.status
    if status.attempt_spec_hash is not None:  # The attempt ends now; later looks wait for its pods.
        status = history.ended(
            status, world.now, cause=Cause.FREE, reason="Suspended", message="spec.suspend was set"
        )
    out = ConditionWriter(world, status)
    gone = not world.pods
    message = "suspended by spec.suspend" if gone else "pods save and stop"
    out.set(ConditionType.SUCCEEDED, None, "Suspended", message)
    out.set(ConditionType.SUSPENDED, gone, "SuspendRequested", message)
    out.set(ConditionType.PODS_READY, False, "Suspended", message)
    out.set(ConditionType.RENDEZVOUSED, False, "Suspended", message)
    status = out.status.model_copy(
        update={
            "ready": f"0/{world.job.spec.nodes}",
            "replicas": len(world.pods),
            # The clock of activeDeadlineSeconds starts anew on resumption, as for a batch Job.
            "start_time": None,
            "attempt_spec_hash": None,
        }
    )
    return Plan(status, tuple(delete_pods(world)))


def broken_deadline(world: World) -> tuple[str, str] | None:
    """Reason and sentence of a deadline that has passed."""
    status, spec = world.job.status, world.job.spec
    active = spec.active_deadline_seconds
    if active is not None and _passed(status.start_time, active, world.now):
        return "DeadlineExceeded", f"active for longer than activeDeadlineSeconds ({active})"
    startup = spec.startup_deadline_seconds
    if startup is None or status.is_true(ConditionType.RENDEZVOUSED):
        return None
    if _passed(status.attempt_start_time, startup, world.now):
        summary = status.condition(ConditionType.SUCCEEDED)
        seen = f": {summary.message}" if summary is not None and summary.message else ""
        late = f"attempt {status.attempt} did not train within startupDeadlineSeconds ({startup})"
        return "StartupDeadlineExceeded", late + seen
    return None


def seconds_to_deadline(world: World, status: DDPJobStatus) -> float | None:
    """Time until the next deadline of an active job."""
    spec = world.job.spec
    startup = spec.startup_deadline_seconds
    if status.is_true(ConditionType.RENDEZVOUSED):
        startup = None
    pairs = (
        (status.start_time, spec.active_deadline_seconds),
        (status.attempt_start_time, startup),
    )
    left = [_left(t, s, world.now) for t, s in pairs if t is not None and s is not None]
    return max(0.1, min(left)) if left else None


def _passed(since: datetime | None, seconds: int, now: datetime) -> bool:
    return since is not None and _left(since, seconds, now) <= 0


def _left(since: datetime, seconds: int, now: datetime) -> float:
    return (since + timedelta(seconds=seconds) - now).total_seconds()
