"""Continue from the attempt that the agents run, after the cluster was restored from a backup.

A backup of etcd holds an older status, with a lower attempt number. The agents accept no lower
order, and the fence of the checkpoints refuses the writers of a lower attempt.
"""

from dataclasses import replace

from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.world import World

_LARGEST_ATTEMPT = 999_999_999
"""Largest attempt number that an agent reads from its annotation."""


def with_reported_attempt(world: World) -> tuple[World, tuple[Event, ...]]:
    """Return the world with the highest attempt number that an agent of this job reports.

    The operator wrote that number before it ordered the attempt, so a lower one in the status is
    older. A status that a cache still lacks is not overwritten, because the write conflicts.
    """
    job, status = world.job, world.job.status
    if is_finished(status):
        return world, ()
    agents = (world.agent_status(pod) for pod in world.pods)
    own = [r.attempt for r in agents if r is not None and r.job_uid == job.metadata.uid]
    known = [attempt for attempt in own if attempt <= _LARGEST_ATTEMPT]
    reported = max(known, default=0)
    if reported <= status.attempt:
        return world, ()
    text = (
        f"the agents run attempt {reported}, but the status names attempt {status.attempt}: the"
        f" operator continues from attempt {reported}, because the status is an older one, as after"
        " a restore from a backup"
    )
    raised = status.model_copy(
        update={
            "attempt": reported,
            "attempt_start_time": world.now.replace(microsecond=0),
            "succeeded_nodes": None,
            "resumed_from_step": None,
        }
    )
    event = Event(EventType.WARNING, "AttemptRestored", text)
    return replace(world, job=job.model_copy(update={"status": raised})), (event,)
