"""Continue from the agents' attempt after the cluster was restored from a backup.

A backup of etcd holds an older status, with a lower attempt number. The agents accept no order with
a lower number, and the checkpoint fence refuses writers of a lower attempt.
"""

from dataclasses import replace

from ddp_operator.api.job import DDPJob
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Event, EventType
from ddp_operator.reconcile.world import World
from ddp_wire import node_ranges
from ddp_wire.messages import AgentStatus

_LARGEST_ATTEMPT = 999_999_999
"""Largest attempt number that an agent reads from its annotation."""


def with_reported_attempt(world: World) -> tuple[World, tuple[Event, ...]]:
    """Return the observed state with the highest attempt number that an agent reports.

    The operator wrote this number before it ordered the attempt, so a lower number in the status is
    older. If only the cache is older, the write conflicts and overwrites nothing.
    """
    job, status = world.job, world.job.status
    if is_finished(status):
        return world, ()
    agents = (world.agent_status(pod) for pod in world.pods)
    own = [r for r in agents if r is not None and r.job_uid == job.metadata.uid]
    known = [agent for agent in own if agent.attempt <= _LARGEST_ATTEMPT]
    newest = max(known, key=lambda agent: agent.attempt, default=None)
    reported = newest.attempt if newest is not None else 0
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
            "members": _reported_members(job, newest),
            "attempt_start_time": world.now.replace(microsecond=0),
            "succeeded_nodes": None,
            "resumed_from_step": None,
        }
    )
    event = Event(EventType.WARNING, "AttemptRestored", text)
    return replace(world, job=job.model_copy(update={"status": raised})), (event,)


def _reported_members(job: DDPJob, agent: AgentStatus | None) -> str | None:
    """Return the members of the attempt that an agent reports, or None for all nodes."""
    if not job.spec.may_leave_nodes_out or agent is None or not agent.members:
        return None
    try:
        members = node_ranges.from_text(agent.members)
    except ValueError:
        return None  # Agents are not trusted.
    return node_ranges.to_text(members) if members <= frozenset(range(job.pods)) else None
