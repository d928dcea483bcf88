"""Let a job wait while another job owns the same checkpoint directory.

If two jobs used one directory, each new attempt of one job would fence out the other job. Jobs with
a `command` have no fence and would overwrite each other's files.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.env import checkpoint_directory
from ddp_operator.reconcile.conditions import CHECKPOINT_PATH_IN_USE
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Plan
from ddp_operator.reconcile.waiting import wait_without_pods
from ddp_operator.reconcile.world import World


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
    message = (
        f"the directory {checkpoint_directory(world.job)} of the checkpoints is in use by the"
        f" DDPJob {owner}: this job starts when {owner} has ended; delete {owner} if it is not"
        " needed, or change checkpoint.path of this job"
    )
    return wait_without_pods(world, CHECKPOINT_PATH_IN_USE, message)
