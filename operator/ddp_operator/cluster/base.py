"""What the controller needs of a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.world import PodView
from ddp_wire.contract import AgentStatus, AttemptOrder

Manifest = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name of a job."""


class ClusterError(Exception):
    """A request was refused or failed. The text is the API server's own sentence."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 when there was no answer."""
        self.retry_after = retry_after
        """Seconds that the server asked to wait."""


class ConflictError(ClusterError):
    """The object has changed, or is another one of that name, since it was read."""


class NameTakenError(ClusterError):
    """An object of that name exists and belongs to somebody else."""


class NotLeadingError(Exception):
    """This process may not write any more: another one leads by now, or may soon."""


@dataclass(frozen=True)
class Listing:
    """The objects of one kind at one time."""

    items: Sequence[Manifest]
    version: int
    """Resource version of the list: an object with a newer one has changed since."""


@dataclass(frozen=True)
class Snapshot:
    """All jobs and their children."""

    jobs: Listing
    pods: Listing
    services: Listing


class Leases(Protocol):
    """Reads and changes the Lease of an election."""

    async def get_lease(self, namespace: str, name: str) -> Manifest | None:
        """The Lease, or None when there is none."""

    async def create_lease(self, lease: Manifest) -> Manifest:
        """Create the Lease and return it.

        Raises:
            ConflictError: There is one already.
        """

    async def update_lease(self, lease: Manifest) -> Manifest:
        """Replace the Lease, if it is still at the version given. Returns it as it is now.

        Raises:
            ConflictError: It has changed since it was read.
        """


class Cluster(Protocol):
    """Reads and changes jobs and their children. Every change is idempotent."""

    async def get_job(self, key: Key) -> Manifest | None:
        """The job, or None when there is none."""

    async def list_pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """The pods that carry these labels."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create a child and return it. One that is there and has the same owner is a success.

        Raises:
            NameTakenError: One is there that has another owner.
            ClusterError: The API server refused it.
        """

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """Delete the pod with this uid. One that is gone already is a success."""

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """Set annotations on the pod with this uid. Returns it, or None when it is gone."""

    async def delete_job(self, key: Key, uid: str) -> None:
        """Delete the job with this uid. One that is gone already is a success."""

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the job's status, if the job is still as given. Returns the job as it is now.

        Raises:
            ConflictError: The job has changed since it was read, or is gone.
        """

    async def emit(self, job: Manifest, event: Event) -> None:
        """Publish an Event about the job. Failing to is logged, not raised."""

    async def ask_agent(self, pod: PodView) -> AgentStatus | None:
        """The agent's own word about its pod, or None when it does not answer in time.

        One that let a question run out a moment ago may be taken to be silent, if its pod is not
        ready.
        """

    async def await_agent(self, pod: PodView, revision: int) -> AgentStatus | None:
        """The agent's word once it is of another revision, or after a while; None as above."""

    async def order_attempt(self, address: str, order: AttemptOrder) -> None:
        """Tell the agent at an address what its pod's annotation says too. Failing is nothing."""
