"""What the controller needs to know of agents."""

from collections.abc import Sequence
from typing import Protocol

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AgentStatus


class AgentStatuses(Protocol):
    """Newest known statuses of agents. They are observations: they may be missing or old.

    Any thread may call the methods that only read.
    """

    def follow(self, key: Key, pods: Sequence[PodView], first: int = 0) -> None:
        """Observe the agents of exactly these pods of a job.

        The other agents send their notices to the agent of node `first`, the first member of the
        attempt.
        """

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        """Return the uids of those pods whose agent did not answer the newest request."""

    @property
    def progress_seconds(self) -> float:
        """Seconds between two status writes that change only the progress of one job."""
