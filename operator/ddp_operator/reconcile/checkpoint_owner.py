"""Let a job wait while another job owns the same checkpoint directory.

If two jobs used one directory, each new attempt of one job would fence out the other job. Jobs with
a `command` have no fence and would overwrite each other's files.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Cause, ConditionType, DDPJobStatus
from ddp_operator.builders.env import checkpoint_directory
from ddp_operator.reconcile import ended_attempts
from ddp_operator.reconcile.children import delete_pods
from ddp_operator.reconcile.conditions import CHECKPOINT_PATH_IN_USE, ConditionWriter
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Event, EventType, Plan
from ddp_operator.reconcile.progress import with_progress
from ddp_operator.reconcile.refused_spec import SPEC_CHANGED
from ddp_operator.reconcile.world import World

LOOK_SECONDS = 10.0
"""Interval, in seconds, at which a waiting job checks whether the owner has ended."""


@dataclass(frozen=True)
class Claimant:
    """A job that uses a checkpoint directory, or would use it after its start."""

    name: str
    uid: str
    created: str
    """Creation time of the job, as the API server wrote it."""
    started: bool
    """Whether an attempt of the job has used the directory."""


def first_in_line(claimants: Iterable[Claimant]) -> Claimant:
    """Return the owner of a directory: a job that has used it, or else the oldest job."""
    return min(claimants, key=lambda one: (not one.started, one.created, one.uid))


def may_share(job: DDPJob) -> bool:
    """Return whether a job is about to start with a directory that another job may own."""
    checkpoint, status = job.spec.checkpoint, job.status
    if checkpoint is None or checkpoint.path is None or job.spec.suspend or is_finished(status):
        return False
    return status.attempt_spec_hash != job.spec_hash


def wait(world: World, owner: str) -> Plan:
    """Return the plan of a job that waits, without pods, for the owner of its directory."""
    status = _without_attempt(world)
    before = status.condition(ConditionType.PODS_READY)
    message = (
        f"the directory {checkpoint_directory(world.job)} of the checkpoints is in use by the"
        f" DDPJob {owner}: this job starts when {owner} has ended; delete {owner} if it is not"
        " needed, or change checkpoint.path of this job"
    )
    out = ConditionWriter(world, status)
    out.set(ConditionType.PODS_READY, False, CHECKPOINT_PATH_IN_USE, message)
    out.set(ConditionType.SUCCEEDED, None, "Pending", message)
    if status.condition(ConditionType.RENDEZVOUSED) is not None:
        out.set(ConditionType.RENDEZVOUSED, False, CHECKPOINT_PATH_IN_USE, message)
    if status.is_true(ConditionType.SUSPENDED):
        out.set(ConditionType.SUSPENDED, False, "Resumed", "")
    status = out.status.model_copy(update={"ready": f"0/{world.job.spec.nodes}"})
    begins = before is None or before.reason != CHECKPOINT_PATH_IN_USE
    event = Event(EventType.WARNING, CHECKPOINT_PATH_IN_USE, message)
    return Plan(
        status, tuple(delete_pods(world)), (event,) if begins else (), requeue_seconds=LOOK_SECONDS
    )


def _without_attempt(world: World) -> DDPJobStatus:
    """Return the status without an attempt. An edited path ends an attempt of the old directory."""
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
