"""Watches of the agents of one job: which of them hold a request, and when its job has news."""

import asyncio
from dataclasses import dataclass, field

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.world import PodView
from ddp_operator.runtime.fair_budget import FairShare, Rate
from ddp_operator.runtime.token_bucket import TokenBucket
from ddp_wire.contract import AgentPhase, AgentStatus

ANSWERS = Rate(burst=16, per_second=1.0)
"""Answers of one agent. A hostile one could answer without end."""
OWN_ANSWERS = 1.25
"""Answers of one agent that wait for no other agent, as a multiple of those of a job that trains.
Such an agent answers once per longest wait of its requests."""
MOST_HELD = 512
"""Most pods of a job whose agents may all hold a request. The agents of a larger job would all
answer within the same second, and hold the event loop."""
FINAL_PHASES = frozenset({AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED})


class AnswerBudget:
    """Budget of the answers of one agent. A watch that begins again keeps the budget of its pod."""

    __slots__ = ("_limit", "_own")

    def __init__(self, now: float) -> None:
        self._limit = TokenBucket(ANSWERS.burst, ANSWERS.per_second, now)
        self._own = TokenBucket(ANSWERS.burst, ANSWERS.per_second, now)

    def take(self, now: float, cost: float, wait: float, shared: TokenBucket) -> float:
        """Charge an answer to the agent's own share, or to the shared one if that is due sooner.

        Args:
            now: Loop time.
            cost: The answer, as a number of ordinary ones.
            wait: Longest wait of the request in seconds.
            shared: Answers of all agents beyond their own shares.

        Returns:
            Seconds until the agent may be asked again.
        """
        self._own.per_second = OWN_ANSWERS / wait
        bucket = min(self._own, shared, key=lambda one: one.seconds_until_token(now))
        return max(self._limit.take(now, cost), bucket.take(now, cost))


@dataclass(slots=True, eq=False)
class Watch:
    """Watch of one agent. Its task ends while the job is quiet."""

    pod: PodView
    state: tuple[object, ...]
    """State of the pod when the watch began. A change makes an answer likelier."""
    answers: AnswerBudget
    task: asyncio.Task[None] | None = None
    status: AgentStatus | None = None
    silent: bool = False
    """Whether the agent did not answer the newest request."""
    answered: bool = False
    """Whether the agent has ever answered."""

    def stop(self) -> None:
        """End the request to the agent."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    def may_be_gone(self) -> bool:
        """Return whether the silence of the agent is the only sign that its pod may be gone.

        The agent of a pod that starts does not answer yet, and a deletion was observed already.
        """
        return self.silent and not self.pod.deleting and (self.pod.ready or self.answered)


@dataclass(slots=True, eq=False)
class JobWatches:
    """Watches of the agents of one job."""

    key: Key
    wakes: FairShare
    """Share of the wakes of all jobs."""
    watches: dict[str, Watch] = field(default_factory=dict)
    """Watch of each followed pod, by its uid."""
    node_0: Watch | None = None
    ended: list[Watch] = field(default_factory=list)
    """Watches whose tasks ended because the job was quiet."""
    later_wake: asyncio.TimerHandle | None = None
    """A wake that is due later. It covers all news until then."""

    @property
    def is_large(self) -> bool:
        """Whether most agents answer at once, one after the other, instead of holding a request."""
        return len(self.watches) > MOST_HELD

    def is_covered_by_node_0(self, pod: PodView) -> bool:
        """Return whether node 0's agent will report when the agent of this pod has news."""
        first = self.node_0
        if first is None or pod.index == 0 or first.silent or first.status is None:
            return False
        return first.status.news is not None

    def concerns_all(self, watch: Watch, known: AgentStatus | None) -> bool:
        """Return whether the new status of a watch is a reason to ask all agents of the job.

        Args:
            watch: The watch with its new status.
            known: Its former status.
        """
        status = watch.status
        if status is None or (known is not None and known.revision == status.revision):
            return False
        if not self.is_large:
            return True
        if watch is not self.node_0:
            return False
        return known is None or known.news != status.news or status.phase in FINAL_PHASES

    def stop_wake(self) -> None:
        """Cancel the wake that is due later."""
        if self.later_wake is not None:
            self.later_wake.cancel()
            self.later_wake = None
