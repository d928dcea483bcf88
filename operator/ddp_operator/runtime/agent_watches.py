"""State of the watches of one job's agents: open requests, budgets and delayed wakes."""

import asyncio
from dataclasses import dataclass, field

from ddp_operator import limits
from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.fair_budget import FairShare
from ddp_operator.runtime.token_bucket import TokenBucket
from ddp_wire.messages import AgentPhase, AgentStatus

FINAL_PHASES = frozenset({AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED})


class AnswerBudget:
    """Budget for the answers of one agent. A restarted watch keeps the budget of its pod."""

    __slots__ = ("_limit", "_share")

    def __init__(self, share: FairShare, now: float) -> None:
        """Create a budget with a share of the budget for all agents' answers."""
        self._limit, self._share = TokenBucket(limits.AGENT_ANSWERS, now), share

    def take(self, now: float, cost: float, wait: float) -> float:
        """Charge an answer. Return the seconds until the next request to the agent may be sent.

        Args:
            now: Loop time.
            cost: Cost of the answer, as a number of ordinary answers.
            wait: Maximum seconds that the agent could hold the request.
        """
        own = self._share.charge(now, cost, limits.OWN_ANSWERS / wait)
        return max(self._limit.take(now, cost), own)


@dataclass(slots=True, eq=False)
class Watch:
    """Watch of one agent. The watch has no task while the job is quiet."""

    pod: PodView
    state: tuple[object, ...]
    """State of the pod when the watch started. After a change an answer is more likely."""
    answers: AnswerBudget
    task: asyncio.Task[None] | None = None
    status: AgentStatus | None = None
    silent: bool = False
    """Whether the agent did not answer the newest request."""
    answered: bool = False
    """Whether the agent has answered any request."""

    def stop(self) -> None:
        """End the request to the agent."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    def may_be_gone(self) -> bool:
        """Return whether only the silence of the agent shows that its pod may be gone.

        That is false for a starting pod, whose agent does not answer yet, and for a pod that is
        being deleted.
        """
        return self.silent and not self.pod.deleting and (self.pod.ready or self.answered)


@dataclass(slots=True, eq=False)
class JobWatches:
    """Watches of the agents of one job."""

    key: Key
    wakes: FairShare
    """The job's share of the budget for wakes, which trigger reconciles."""
    watches: dict[str, Watch] = field(default_factory=dict)
    """Watch of each followed pod, by its uid."""
    first: int = 0
    """Node of the first member. Its agent counts the notices of all other agents."""
    first_watch: Watch | None = None
    ended: list[Watch] = field(default_factory=list)
    """Watches whose tasks ended because the job was quiet."""
    later_wake: asyncio.TimerHandle | None = None
    """Timer of a delayed wake, which covers all changes until then."""

    @property
    def is_large(self) -> bool:
        """Whether the job is so large that most agents answer requests at once, one by one."""
        return len(self.watches) > limits.MOST_HELD

    def is_covered_by_first(self, pod: PodView) -> bool:
        """Return whether the first member's agent learns that this pod's status is unread."""
        first = self.first_watch
        if first is None or pod.index == self.first or first.silent or first.status is None:
            return False
        return first.status.unread_notices is not None

    def concerns_all(self, watch: Watch, known: AgentStatus | None) -> bool:
        """Return whether the new status of one agent requires requests to all agents of the job.

        Args:
            watch: The watch with its new status.
            known: The former status of the same agent.
        """
        status = watch.status
        if status is None or (known is not None and known.revision == status.revision):
            return False
        if not self.is_large:
            return True
        if watch is not self.first_watch:
            return False
        if known is None or status.phase in FINAL_PHASES:
            return True
        return known.unread_notices != status.unread_notices

    def stop_wake(self) -> None:
        """Cancel the delayed wake."""
        if self.later_wake is not None:
            self.later_wake.cancel()
            self.later_wake = None
