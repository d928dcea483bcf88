"""Elastic jobs, their pods and the statuses of their agents."""

from collections.abc import Iterable, Mapping
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import AttemptStatus, Cause, ConditionType
from ddp_operator.reconcile.plan import Plan, SetAttempt
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire import node_ranges
from ddp_wire.messages import AgentStatus, Timeline
from tests.operator.support import (
    NOW,
    active_job,
    after,
    agent_status,
    condition,
    plan_for,
    pod,
    with_status,
)


def elastic_job(
    nodes: int = 4,
    minimum: int = 1,
    *,
    members: str | None = None,
    attempt: int = 2,
    status: Mapping[str, Any] | None = None,
    **more: Any,
) -> DDPJob:
    """Return an elastic job in its second attempt, after a lost first attempt."""
    lost = AttemptStatus(number=attempt - 1, end_time=NOW, cause=Cause.FREE, reason="PodLost")
    before = {"members": members or f"0-{nodes - 1}", "attempts": [lost] if attempt > 1 else []}
    return active_job(
        nodes=nodes,
        elastic={"minNodes": minimum},
        attempt=attempt,
        status=before | dict(status or {}),
        **more,
    )


def waiting(job: DDPJob, index: int, *, warm: bool = True) -> AgentStatus:
    """Return the status of an agent that waits, at the start barrier or as no member."""
    return agent_status(index, attempt=job.status.attempt, phase="Waiting", warm=warm)


def training(job: DDPJob, index: int) -> AgentStatus:
    attempt = job.status.attempt
    start = NOW.timestamp()
    times = Timeline(ordered=start, launched=start, spawned=start, joined=start, stepped=start)
    return agent_status(index, attempt=attempt, phase="Training", timeline=times, warm=True)


def pods(job: DDPJob, indices: Iterable[int], ready: Iterable[int] | None = None) -> list[PodView]:
    """Return pods of these nodes. Those in `ready` train; by default all members."""
    trains = set(job.members if ready is None else ready)
    return [pod(job, index, ready=index in trains) for index in indices]


def members(plan: Plan) -> set[int]:
    return set(node_ranges.from_text(plan.status.members))


def orders(plan: Plan) -> dict[str, str]:
    return {a.name: a.value for a in plan.actions if isinstance(a, SetAttempt)}


def starting(job: DDPJob) -> DDPJob:
    """Return the job before the ranks of its attempt have joined."""
    conditions = [
        condition(ConditionType.RENDEZVOUSED, "False"),
        condition(ConditionType.SUCCEEDED, "Unknown", "Pending"),
    ]
    return with_status(job, conditions=conditions)


def grown_at(job: DDPJob, seconds: float) -> Plan:
    statuses = {i: training(job, i) for i in job.members} | {
        i: waiting(job, i) for i in range(job.nodes) if i not in job.members
    }
    return plan_for(job, pods(job, range(job.nodes)), statuses=statuses, now=after(seconds))
