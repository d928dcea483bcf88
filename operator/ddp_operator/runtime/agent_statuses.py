"""Protocol through which the controller reads agent statuses."""

from collections.abc import Sequence
from typing import Protocol

from ddp_operator.cluster.base import Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AgentStatus


class AgentStatuses(Protocol):
    """Source of the newest known agent statuses, which may be missing or old.

    Any thread may call the methods that do not change the source.
    """

    def follow(self, key: Key, pods: Sequence[PodView], first: int = 0) -> None:
        """Follow the agents of these pods of a job, and of no other pods of the job.

        All other agents send their notices to the agent of node `first`, the attempt's first
        member.
        """

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        """Return the uids of those pods whose agent did not answer the newest request."""

    @property
    def progress_seconds(self) -> float:
        """Minimum seconds between two status writes of one job that change only its progress."""
