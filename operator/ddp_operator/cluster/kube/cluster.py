"""Read and write jobs and their children in a Kubernetes cluster, and reach the agents."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Self

from ddp_operator.api.base import KIND
from ddp_operator.builders.gangs.kueue import why_waiting
from ddp_operator.builders.kinds import kinds_of_kubernetes
from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import (
    AgentAnswer,
    ClusterError,
    ClusterSnapshot,
    ConflictError,
    Key,
    Listing,
    Manifest,
    Request,
)
from ddp_operator.cluster.kube.child_writer import create_child
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.discovery import served_versions
from ddp_operator.cluster.kube.documents import (
    config_map_document,
    event_document,
    newest_event,
    newest_warning,
    status_document,
)
from ddp_operator.cluster.kube.lists import decode_nothing
from ddp_operator.cluster.kube.object_lists import list_at_once, list_pages, take_snapshot
from ddp_operator.cluster.kube.paths import CONFIG_MAP, WORKLOAD, object_path
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.cluster.kube.watch import Sink, watch_children, watch_nodes
from ddp_operator.limits import PAGE, REQUESTS_IN_FLIGHT
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.pod_view import PodView
from ddp_wire.messages import AttemptOrder, InspectionRequest

_log = logging.getLogger(__name__)


class KubeCluster:
    """Access to one Kubernetes cluster. Create it with `connect` and end it with `close`."""

    def __init__(self, connection: ApiConnection, agents: Agents) -> None:
        """Create an access from a connection to the API server and a client of the agents."""
        self._connection, self._agents = connection, agents

    @classmethod
    async def connect(
        cls,
        *,
        in_flight: int = REQUESTS_IN_FLIGHT,
        may_write: Callable[[], None] = lambda: None,
        on_request: Callable[[Request], None] = lambda _: None,
    ) -> Self:
        """Connect to the API server. The arguments are those of `ApiConnection`."""
        connection = await ApiConnection.connect(
            in_flight=in_flight, may_write=may_write, on_request=on_request
        )
        return cls(connection, Agents())

    async def close(self) -> None:
        """Close the connections to the API server and to the agents."""
        await self._connection.close()
        await self._agents.close()

    async def snapshot(
        self, namespace: str | None, kinds: Iterable[str] | None = None
    ) -> ClusterSnapshot:
        """Return all jobs and their children, of one namespace or of all namespaces.

        Args:
            namespace: Namespace of the jobs, or None for all.
            kinds: Kinds of children to list. None lists those that every API server serves.
        """
        return await take_snapshot(self._connection, namespace, kinds or kinds_of_kubernetes())

    async def watch_children(
        self, kinds: Iterable[str], namespaces: Sequence[str], sink: Sink
    ) -> None:
        """Watch the children of these kinds forever, in the given namespaces or in all."""
        await watch_children(self._connection, kinds, namespaces, sink)

    async def watch_nodes(self, sink: Sink) -> None:
        """Watch all Kubernetes nodes of the cluster forever."""
        await watch_nodes(self._connection, sink)

    async def get_job(self, key: Key) -> Manifest | None:
        """Implement `Cluster.get_job`."""
        found = await self._connection.get(object_path(KIND, *key))
        return keep_used_fields(KIND, found) if found is not None else None

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        """Implement `Cluster.list_pods`."""
        selector = ",".join(f"{k}={v}" for k, v in labels.items())
        query = {"labelSelector": selector}
        listed = list_pages if expected > PAGE else list_at_once
        return await listed(self._connection, "Pod", namespace, query)

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        """Implement `Cluster.create`."""
        return await create_child(self._connection.call, manifest, on_restored)

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """Implement `Cluster.delete_pod`."""
        body: Manifest = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._connection.delete(object_path("Pod", namespace, name), body, uid)

    async def delete_child(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Implement `Cluster.delete_child`."""
        body: Manifest = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._connection.delete(object_path(kind, namespace, name), body, uid)

    async def served_versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of an API group that the API server serves, as GROUP/VERSION.

        Raises:
            ClusterError: The API server refused or did not answer.
        """
        return await served_versions(self._connection, group)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """Implement `Cluster.annotate_pod`."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        return await self._patch("Pod", namespace, name, body)

    async def patch_claim(
        self, namespace: str, name: str, uid: str, patch: Mapping[str, Any]
    ) -> Manifest | None:
        """Implement `Cluster.patch_claim`."""
        body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": uid}}
        return await self._patch("PersistentVolumeClaim", namespace, name, body)

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """Implement `Cluster.end_pod` by a deadline, at which the kubelet ends the pod."""
        body = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}}
        await self._patch("Pod", namespace, name, body)

    async def _patch(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest | None:
        path = object_path(kind, namespace, name)
        try:
            patched = await self._connection.call("PATCH", path, body=body)
        except ClusterError as error:
            if not await self._connection.is_gone(path, body["metadata"]["uid"], error):
                raise
            return None
        return keep_used_fields(kind, patched)

    async def delete_job(self, key: Key, uid: str) -> None:
        """Implement `Cluster.delete_job`."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._connection.delete(object_path(KIND, *key), body, uid)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Implement `Cluster.write_status`."""
        metadata = job["metadata"]
        path = object_path(KIND, metadata["namespace"], metadata["name"]) + "/status"
        try:
            written = await self._connection.call("PUT", path, body=status_document(job, status))
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ConflictError(str(error), status=error.status) from error
            raise
        return keep_used_fields(KIND, written)

    async def emit(self, job: Manifest, event: Event) -> None:
        """Implement `Cluster.emit`."""
        body = event_document(job, event, datetime.now(UTC))
        path = object_path("Event", job["metadata"]["namespace"])
        try:
            await self._connection.call("POST", path, body=body, decode=decode_nothing)
        except ClusterError as error:
            _log.warning("event %s was not published: %s", event.reason, error)

    async def newest_warning(self, namespace: str, uid: str) -> str | None:
        """Implement `Cluster.newest_warning`."""
        return newest_warning(await self._events(namespace, uid))

    async def newest_event(self, namespace: str, uid: str) -> str | None:
        """Implement `Cluster.newest_event`."""
        return newest_event(await self._events(namespace, uid))

    async def _events(self, namespace: str, uid: str) -> list[Manifest]:
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(PAGE)}
        found = await self._connection.call("GET", object_path("Event", namespace), query=query)
        items: list[Manifest] = found["items"]
        return items

    async def queue_message(self, namespace: str, group: str) -> str:
        """Implement `Cluster.queue_message`."""
        found = await self._connection.get(object_path(WORKLOAD, namespace, group))
        return "" if found is None else why_waiting(found)

    async def delete_workload(self, namespace: str, group: str) -> None:
        """Implement `Cluster.delete_workload`."""
        path = object_path(WORKLOAD, namespace, group)
        body = {"propagationPolicy": "Background"}
        try:
            await self._connection.call("DELETE", path, body=body, decode=decode_nothing)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def read_config_map(self, namespace: str, name: str) -> Manifest | None:
        """Implement `ConfigMaps.read_config_map`."""
        return await self._connection.get(object_path(CONFIG_MAP, namespace, name))

    async def patch_config_map(
        self, namespace: str, name: str, labels: Mapping[str, str], patch: Mapping[str, Any]
    ) -> None:
        """Implement `ConfigMaps.patch_config_map`."""
        path = object_path(CONFIG_MAP, namespace, name)
        try:
            await self._connection.call("PATCH", path, body=dict(patch), decode=decode_nothing)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            body = config_map_document(namespace, name, labels, patch)
            path = object_path(CONFIG_MAP, namespace)
            await self._connection.call("POST", path, body=body, decode=decode_nothing)

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        """Implement `Cluster.watch_agent_status`."""
        if not pod.ip:
            return AgentAnswer()
        return await self._agents.watch_status(
            pod.ip, pod.secret, revision, seconds, pod.agent_port
        )

    def send_order(self, address: str, port: int, secret: str, order: AttemptOrder) -> None:
        """Implement `Cluster.send_order`."""
        self._connection.may_write()
        self._agents.send_order(address, secret, order, port)

    def send_inspection(self, pods: Sequence[PodView], request: InspectionRequest) -> None:
        """Implement `Cluster.send_inspection`."""
        self._agents.send_inspection(
            [(pod.ip, pod.agent_port, pod.secret) for pod in pods if pod.ip], request
        )
