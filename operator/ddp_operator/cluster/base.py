"""Protocols of the cluster access that the controller uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from ddp_operator.cluster.errors import ClusterError as ClusterError  # noqa: PLC0414
from ddp_operator.cluster.errors import ConflictError as ConflictError  # noqa: PLC0414
from ddp_operator.cluster.errors import NameTakenError as NameTakenError  # noqa: PLC0414
from ddp_operator.cluster.errors import NoClusterError as NoClusterError  # noqa: PLC0414
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AgentStatus, AttemptOrder, InspectionRequest

Manifest = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name that identify a job."""


class NotLeadingError(Exception):
    """Error for a write that was refused because another process may be the leader."""


@dataclass(frozen=True)
class Listing:
    """All objects of one kind at one resource version."""

    items: Sequence[Manifest]
    version: int
    """Resource version of the list. An object with a higher version changed after the list was
    made."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """All jobs and their children, as one relist returned them."""

    jobs: Listing
    children: Mapping[str, Listing]
    """Children by kind, without the kinds that the operator does not use."""

    @classmethod
    def merge(cls, parts: Sequence["ClusterSnapshot"]) -> "ClusterSnapshot":
        """Return the snapshots of several namespaces as one.

        The result has the oldest of their versions, because newer objects may be missing from a
        list.
        """
        jobs = _merge_lists([part.jobs for part in parts])
        kinds = parts[0].children
        children = {kind: _merge_lists([part.children[kind] for part in parts]) for kind in kinds}
        return cls(jobs, children)


def _merge_lists(lists: Sequence[Listing]) -> Listing:
    items = tuple(item for one in lists for item in one.items)
    return Listing(items, min(one.version for one in lists))


@dataclass(frozen=True)
class Request:
    """Outcome of one request to the API server, for metrics."""

    verb: str
    """HTTP method."""
    resource: str
    """Plural of the resource with its subresource: pods or ddpjobs/status."""
    status: int
    """HTTP status, or 0 without a response."""
    seconds: float
    """Time until the response."""

    @property
    def served(self) -> bool:
        """Whether the API server answered this process, even if it refused the request."""
        return self.status not in _UNSERVED


_UNSERVED = frozenset({0, HTTPStatus.UNAUTHORIZED, *range(500, 600)})


@dataclass(frozen=True)
class AgentAnswer:
    """Answer of an agent, or the fact that none arrived."""

    status: AgentStatus | None = None
    """Valid, signed status of the agent, or None if none arrived in time."""
    size: int = 0
    """Bytes that were read, even of an invalid answer. Each piece counts as at least 512 bytes."""


class Leases(Protocol):
    """Access to the Lease that a leader election uses."""

    async def get_lease(self, namespace: str, name: str) -> Manifest | None:
        """Return the Lease, or None if it does not exist."""

    async def create_lease(self, lease: Manifest) -> Manifest:
        """Create the Lease and return it.

        Raises:
            ConflictError: The Lease already exists.
        """

    async def update_lease(self, lease: Manifest) -> Manifest:
        """Replace the Lease if it still has the given version. Return the new Lease.

        Raises:
            ConflictError: The Lease was changed since it was read.
        """


def namespace_of(key: Key) -> str:
    """Return the namespace in the key of a job."""
    return key[0]


def owner_uids(child: Manifest) -> frozenset[str]:
    """Return the uids of the owners of an object."""
    return frozenset(o["uid"] for o in child["metadata"].get("ownerReferences") or [])


class Cluster(Protocol):
    """Access to jobs, their children and their agents. Every change is idempotent."""

    async def get_job(self, key: Key) -> Manifest | None:
        """Return the job, or None if it does not exist."""

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        """Return the pods with these labels. About `expected` pods exist."""

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        """Create a child and return it. Return an existing child if the same job owns it.

        If another writer has changed the existing child, restore it, and call `on_restored` with
        the name of the other writer.

        Raises:
            NameTakenError: A child with this name exists and has another owner.
            ConflictError: A child with this name is being deleted.
            ClusterError: The API server refused the request.
        """

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """Delete the pod with this uid, if it still exists."""

    async def delete_child(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the child with this uid, if it still exists. The child must not be a pod.

        `kind` is the name of its row in the table of kinds.
        """

    async def patch_claim(
        self, namespace: str, name: str, uid: str, patch: Mapping[str, Any]
    ) -> Manifest | None:
        """Apply a merge patch to the claim with this uid. Return it, or None if it is gone.

        Raises:
            ClusterError: The API server refused the request.
        """

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """Set annotations on the pod with this uid. Return the pod, or None if it is gone."""

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """End all containers of the pod with this uid, but keep the pod and its logs."""

    async def delete_job(self, key: Key, uid: str) -> None:
        """Delete the job with this uid, if it still exists."""

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the job's status if the job still has the given version. Return the new job.

        Raises:
            ConflictError: The job was changed or deleted since it was read.
        """

    async def emit(self, job: Manifest, event: Event) -> None:
        """Publish an Event about the job. Log a failure instead of raising an error."""

    async def newest_warning(self, namespace: str, uid: str) -> str | None:
        """Return reason and message of the newest warning Event about a pod, or None.

        Raises:
            ClusterError: The API server refused the request.
        """

    async def newest_event(self, namespace: str, uid: str) -> str | None:
        """Return reason and message of the newest Event about an object, or None.

        Raises:
            ClusterError: The API server refused the request.
        """

    async def queue_message(self, namespace: str, group: str) -> str:
        """Return why Kueue does not admit the Workload of a group, or "".

        Raises:
            ClusterError: The API server refused the request.
        """

    async def delete_workload(self, namespace: str, group: str) -> None:
        """Delete Kueue's Workload of a group, if it still exists."""

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        """Return the answer of the pod's agent once its status changes, or after some seconds."""

    def send_order(self, address: str, port: int, secret: str, order: AttemptOrder) -> None:
        """Begin to send a signed attempt order to the agent at an address and port.

        The call does not wait for the agent. A failure is ignored, because the pod's annotation
        contains the same order.
        """

    def send_inspection(self, pods: Sequence[PodView], request: InspectionRequest) -> None:
        """Begin to send a user's question to the agents of some pods.

        The call does not wait for the agents. A failure is ignored, because the user can ask again.
        """
