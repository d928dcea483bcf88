"""Observe a job and build its plan, without waiting for an agent or the API server."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.host_ports import ports_of
from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import Manifest
from ddp_operator.limits import LARGE_JOB
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import Action, EnsureChild, Plan
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.agent_statuses import AgentStatuses
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.job_state import JobState
from ddp_operator.runtime.kubernetes_nodes import NodeViews
from ddp_operator.runtime.ownership import belongs
from ddp_wire.contract import AGENT_PORT


class Decider:
    """Builder of plans for all jobs, from the cache and from the agents' statuses."""

    def __init__(
        self,
        cache: Cache,
        agents: AgentStatuses,
        defaults: Defaults,
        clock: Callable[[], datetime],
        nodes: NodeViews | None = None,
    ) -> None:
        """Create a decider.

        Args:
            cache: Newest known jobs and children.
            agents: Newest known statuses of agents.
            defaults: The operator's defaults for spec fields that a job leaves out.
            clock: Function that returns the current time.
            nodes: Newest known Kubernetes nodes, or None if the operator does not watch them.
        """
        self._cache, self._agents, self._nodes = cache, agents, nodes
        self._defaults, self._clock = defaults, clock

    async def decide(
        self, job: DDPJob, pods: Sequence[Manifest], state: JobState
    ) -> tuple[World, Plan]:
        """Return the observed state of a job with these pods, and the plan for the job."""
        owner = self._checkpoint_owner(job)
        port = self._free_port(job) if owner is None else None

        def look() -> tuple[World, Plan]:
            # CPU time of this thread, so that other threads and processes cost nothing.
            started = time.thread_time()
            seen = self._observe(job, pods, state)
            world = replace(seen, checkpoint_owner=owner, free_port=port)
            plan = self._without_held_repairs(job, decide(world, self._defaults), state)
            state.decision_seconds = time.thread_time() - started
            return world, plan

        if max(len(pods), job.pods) < LARGE_JOB:
            found = look()
        else:
            # The event loop stays free for the Lease, the health endpoint and other jobs.
            found = await asyncio.to_thread(look)
        return found

    def _checkpoint_owner(self, job: DDPJob) -> str | None:
        """Return the name of another job that owns this job's checkpoint directory, or None."""
        asks = job.spec.checkpoint is not None and not job.spec.suspend
        if not asks or is_finished(job.status):
            return None
        return self._cache.directories.owner(job.key)

    def _free_port(self, job: DDPJob) -> int | None:
        """Return the first port of the block of a job that is about to start, or None."""
        ports, starts = self._defaults.host_ports, job.status.attempt_spec_hash != job.spec_hash
        if ports is None or not job.spec.uses_host_network or not starts:
            return None
        if job.spec.suspend or is_finished(job.status):
            return None
        return self._cache.host_ports.block(job.key, ports)

    def _observe(self, job: DDPJob, pods: Sequence[Manifest], state: JobState) -> World:
        """Return the observed state of a job. Any thread may call this method."""
        views = state.views.of([p for p in pods if belongs(p, job)])
        if (port := ports_of(job).agent) != AGENT_PORT:
            views = tuple(replace(view, agent_port=port) for view in views)
        workers = [view for view in views if not view.init_step]
        known = self._agents.statuses(workers)
        return World(
            job=job,
            now=self._clock(),
            pods=state.warnings.added_to(workers),
            init_pods=state.warnings.added_to([view for view in views if view.init_step]),
            children={kind: self._children(kind, job) for kind in KINDS if kind != "Pod"},
            # The address may belong to a pod of another job by now.
            agent_statuses={u: s for u, s in known.items() if s.job_uid in {job.metadata.uid, ""}},
            silent=self._agents.silent(workers),
            kubernetes_nodes=self._nodes.of(v.node for v in views) if self._nodes else {},
            progress_interval=timedelta(seconds=self._agents.progress_seconds),
            undecided_for=state.sightings.undecided_for(),
            deleting_for=state.sightings.deleting_for(views),
            last_nodes=state.sightings.last_nodes(workers) if job.spec.may_leave_nodes_out else {},
            creation_waits=state.sightings.creation_waits(job.status.attempt),
            refused_claim=state.refused_claim,
            claim_event=state.claim_events.text,
            queue_message=state.queue.message,
            blocked=state.blocked,
        )

    def _without_held_repairs(self, job: DDPJob, plan: Plan, state: JobState) -> Plan:
        """Return the plan without repairs of children that another writer keeps changing."""

        def is_held(action: Action) -> bool:
            if not isinstance(action, EnsureChild):
                return False
            kind, name = action.kind.name, action.name
            exists = any(c["metadata"]["name"] == name for c in self._children(kind, job))
            return exists and state.repairs.is_held(kind, name)

        held = [one for one in plan.actions if is_held(one)]
        if not held:
            return plan
        return replace(plan, actions=tuple(one for one in plan.actions if one not in held))

    def _children(self, kind: str, job: DDPJob) -> list[Manifest]:
        return [c for c in self._cache.children(kind, job.key) if belongs(c, job, kind)]
