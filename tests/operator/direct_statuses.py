"""Agent statuses that decisions read directly from a fake cluster."""

from collections.abc import Sequence

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AgentStatus
from tests.operator.fake_cluster import FakeCluster


class DirectStatuses:
    """The agent statuses of a fake cluster as they are, without the delay of a watch."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.followed: set[str] = set()
        """Names of the pods whose agents are followed."""
        self.ports: set[int] = set()
        """Ports of the followed agents."""

    def follow(self, key: Key, pods: Sequence[PodView], first: int = 0) -> None:
        del key, first
        self.followed = {pod.name for pod in pods}
        self.ports = {pod.agent_port for pod in pods}

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        agents = self._cluster.agents
        return {p.uid: agents[p.uid] for p in pods if p.uid in agents and p.ip}

    progress_seconds = 5.0

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        return frozenset(p.uid for p in pods if p.uid not in self._cluster.agents)
