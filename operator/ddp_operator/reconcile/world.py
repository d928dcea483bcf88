"""The observed state of one job and its children, on which each decision depends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType
from ddp_operator.builders import names
from ddp_operator.builders.gangs.schedulers import recorded_gang
from ddp_operator.limits import PROGRESS_SECONDS
from ddp_operator.reconcile.node_view import NodeView
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire import node_ranges
from ddp_wire.messages import AgentStatus

PROGRESS_INTERVAL = timedelta(seconds=PROGRESS_SECONDS)
"""Minimum time between two status writes that change only the progress of one job."""


@dataclass(frozen=True)
class RefusedPatch:
    """Change of the claim of the checkpoints that the API server refused."""

    patch: Mapping[str, Any]
    message: str
    """Error of the API server."""


@dataclass(frozen=True)
class World:
    """Observed state: everything that a decision depends on.

    No decision compares the clocks of two machines. Times in the status are by the operator's
    clock. Times of a container and its agent are by the clock of their Kubernetes node. For
    everything else, the operator measures how long it has observed a state.
    """

    job: DDPJob
    now: datetime
    """Current time by the operator's clock."""
    pods: tuple[PodView, ...] = ()
    """Worker pods of the job."""
    init_pods: tuple[PodView, ...] = ()
    """Pods of the job's init steps."""
    children: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """The job's children that are not pods, by kind. They contain at least their owned fields."""
    agent_statuses: Mapping[str, AgentStatus] = field(default_factory=dict)
    """Newest agent status by pod uid."""
    silent: frozenset[str] = frozenset()
    """Uids of the pods whose agent did not answer the newest request."""
    kubernetes_nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """Known Kubernetes nodes of the pods, by name. Empty if the operator watches no nodes."""
    last_nodes: Mapping[int, str] = field(default_factory=dict)
    """Kubernetes node on which this operator last saw the pod of each node of an elastic job."""
    undecided_for: timedelta | None = None
    """Time for which this operator has seen faults without a root cause, or None."""
    deleting_for: Mapping[str, timedelta] = field(default_factory=dict)
    """Time for which this operator has seen that a pod is being deleted, by pod uid."""
    creation_waits: Mapping[int, timedelta] = field(default_factory=dict)
    """Wait before the creation of a pod, by node: see `backoff.before_creation`."""
    progress_interval: timedelta = PROGRESS_INTERVAL
    """Minimum time between two status writes that change only the progress."""
    checkpoint_owner: str | None = None
    """Name of another job that owns this job's checkpoint directory, or None."""
    free_port: int | None = None
    """First port of the block that a job with `network.hostNetwork` gets, or has already. None if
    no block is free."""
    refused_claim: RefusedPatch | None = None
    """Newest refused change of the claim that the operator created, or None."""
    claim_event: str | None = None
    """Reason and message of the newest Event about this claim while it waits, or None."""
    queue_message: str = ""
    """Kueue's reason why it does not admit the job's gang, or ""."""
    blocked: str | None = None
    """Error of the API server that stopped the actions of the last plan."""

    def pod(self, index: int) -> PodView | None:
        """Return the pod of a node, or None.

        If a finalizer keeps an ended pod, its successor is the pod of the node.
        """
        return self._current.get(index)

    def pods_of(self, index: int) -> Sequence[PodView]:
        """Return all pods of a node: its pod, and pods that are about to vanish."""
        return self._by_index.get(index, ())

    def pod_name(self, index: int) -> str:
        """Return the name of a node's pod, or of the first one if the node has no pod."""
        pod = self.pod(index)
        return names.pod_name(self.job, index) if pod is None else pod.name

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Nodes that train in the current attempt, in the order of their ranks."""
        return self.job.members

    @property
    def first_pod(self) -> PodView | None:
        """Pod of the first member. It hosts the rendezvous and runs global rank 0."""
        return self.pod(self.members[0])

    @property
    def ranks(self) -> int:
        """Number of ranks of the current attempt."""
        return len(self.members) * self.job.spec.ranks_per_node

    def node_of(self, rank: int) -> int | None:
        """Return the node of a global rank, or None if the attempt has no such rank."""
        if not 0 <= rank < self.ranks:
            return None
        return self.members[rank // self.job.spec.ranks_per_node]

    def pod_of(self, rank: int) -> PodView | None:
        """Return the pod of a global rank, or None."""
        node = self.node_of(rank)
        return None if node is None else self.pod(node)

    @cached_property
    def succeeded(self) -> frozenset[int]:
        """Nodes that ended the current attempt with exit code 0, even without a pod now."""
        status = self.job.status
        recorded = node_ranges.from_text(status.succeeded_nodes)
        ended = (p for p in self.pods if p.phase == "Succeeded" and self.ended_here(p))
        return recorded | {pod.index for pod in ended}

    @cached_property
    def has_started(self) -> bool:
        """Whether torchrun has started on all nodes, even if some pods were lost since.

        The start barrier opens for all agents at once, so one started torchrun proves the start of
        all. The condition Rendezvoused comes later.
        """
        joined = self.job.status.is_true(ConditionType.RENDEZVOUSED)
        return joined or any(self._has_launched(pod) for pod in self.pods)

    def _has_launched(self, pod: PodView) -> bool:
        agent = self.agent_status(pod)
        if agent is None or agent.attempt != self.job.status.attempt or agent.timeline is None:
            return False
        return agent.timeline.launched is not None or agent.timeline.joined is not None

    def ended_here(self, pod: PodView) -> bool:
        """Return whether a terminal pod ended in the current attempt.

        The agent's last status decides, because the annotation may already name the next attempt.
        Without a last status, no clock can decide, because an offline kubelet reports an end late.
        Then the end belongs to this attempt if the pod was created for it or has reported it, and
        if the attempt has started, which needs all pods. Otherwise the pod ended before this
        attempt.
        """
        attempt, end = self.job.status.attempt, pod.termination
        if end is not None and end.final is not None:
            return end.final.attempt == attempt
        if pod.attempt != str(attempt):
            return False
        # No attempt precedes the first one.
        if attempt == 1 or pod.first_attempt == str(attempt) or self.has_started:
            return True
        agent = self.agent_statuses.get(pod.uid)
        return agent is not None and agent.attempt == attempt

    @cached_property
    def job_secret(self) -> str | None:
        """Secret that new pods must share with the living pods. None if no pod lives.

        Pods of an older operator have no secret, and could not verify the signatures of new pods.
        """
        living = [p for p in self.pods if not p.terminal and not p.deleting]
        return min(living, key=lambda p: p.index).job_secret if living else None

    @cached_property
    def pods_of_gang(self) -> tuple[PodView, ...]:
        """Pods that serve as nodes of the current gang, or none for a job without a gang."""
        gang = recorded_gang(self.job)
        size = 0 if gang is None else gang.size
        mine = (p for p in self.pods if p.spec_hash == self.job.spec_hash)
        return tuple(p for p in mine if 0 <= p.index < size and not self.is_of_former_gang(p))

    @cached_property
    def gang_is_placed(self) -> bool:
        """Whether every pod of the gang has a Kubernetes node or has succeeded.

        True for a job without a gang.
        """
        gang = recorded_gang(self.job)
        size = 0 if gang is None else gang.size
        placed = {p.index for p in self.pods_of_gang if p.has_place}
        return set(range(size)) <= placed | self.succeeded

    def is_of_former_gang(self, pod: PodView) -> bool:
        """Return whether a pod belongs to another group than that of the current attempt."""
        gang = recorded_gang(self.job)
        return bool(pod.gang_group) and (gang is None or pod.gang_group != gang.group)

    def why_going(self, pod: PodView) -> str | None:
        """Return the reason why a running pod will soon be lost, as a sentence, or None."""
        if pod.disruption is not None:
            return f"{pod.name} has the disruption {pod.disruption}"
        node = self.kubernetes_nodes.get(pod.node or "")
        return None if node is None else node.why_unusable(pod.tolerations)

    @cached_property
    def _current(self) -> dict[int, PodView]:
        return {
            index: pods[0] if len(pods) == 1 else max(pods, key=_precedence)
            for index, pods in self._by_index.items()
        }

    @cached_property
    def _by_index(self) -> dict[int, list[PodView]]:
        found: dict[int, list[PodView]] = {}
        for pod in self.pods:
            found.setdefault(pod.index, []).append(pod)
        return found

    def agent_status(self, pod: PodView) -> AgentStatus | None:
        """Return the newest status of a pod's agent, or None.

        A status in the termination message is newer than any answer of the agent.
        """
        if pod.termination is not None and pod.termination.final is not None:
            return pod.termination.final
        return self.agent_statuses.get(pod.uid)


def _precedence(pod: PodView) -> tuple[bool, bool, int, str]:
    """Return a key by which the pod that serves as a node comes last."""
    return not pod.terminal, not pod.deleting, pod.generation, pod.name
