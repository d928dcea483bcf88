"""Cluster access through a Kubernetes API server, with the low-level call of kubernetes.aio.

Manifests stay dictionaries, because the client's models refuse unknown pod fields and take most of
the time of a request (docs/decisions/0003-client.md).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from ddp_operator.api.base import API_GROUP, KIND, PLURAL
from ddp_operator.cluster.agents import Agents
from ddp_operator.cluster.base import (
    AgentAnswer,
    ClusterError,
    ConflictError,
    Key,
    Listing,
    Manifest,
    Request,
    Snapshot,
)
from ddp_operator.cluster.kube.child_writer import create_child
from ddp_operator.cluster.kube.documents import (
    COMPONENT,
    event_document,
    namespace_in,
    newest_warning,
    refusal,
    resource_of,
    status_document,
)
from ddp_operator.cluster.kube.fair_semaphore import FairSemaphore
from ddp_operator.cluster.kube.lists import Decode, DecoderThread, decode_nothing, list_decoder
from ddp_operator.cluster.kube.paths import object_path
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.reconcile.plan import Event
from ddp_operator.reconcile.world import PodView
from ddp_wire import contract
from ddp_wire.contract import AttemptOrder

_log = logging.getLogger(__name__)

_MERGE_PATCH = "application/merge-patch+json"
_REQUEST_SECONDS = 30
PAGE = 500
"""Number of objects in one answer to a list. Their JSON has some 5 MB and parses in 50 ms."""


class KubeCluster:
    """Client of one API server. Create it with `connect` and end it with `close`."""

    def __init__(
        self,
        api: client.ApiClient,
        agents: Agents,
        *,
        may_write: Callable[[], None] = lambda: None,
        on_request: Callable[[Request], None] = lambda _: None,
        in_flight: int = 32,
    ) -> None:
        """Create a client.

        Args:
            api: Client of the API server.
            agents: Client of the agents.
            may_write: Called before each change. It raises when this process must not write.
            on_request: Called after each request.
            in_flight: Maximum number of concurrent requests.
        """
        self._api = api
        self._agents = agents
        self._may_write, self._on_request = may_write, on_request
        self._in_flight = FairSemaphore(in_flight)
        self._decoder = DecoderThread()

    @classmethod
    async def connect(
        cls,
        *,
        in_flight: int = 32,
        may_write: Callable[[], None] = lambda: None,
        on_request: Callable[[Request], None] = lambda _: None,
    ) -> Self:
        """Connect with the pod's service account if there is one, otherwise with the kubeconfig."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        configuration.connection_pool_maxsize = in_flight
        use_proxy_of_environment(configuration)
        api, agents = client.ApiClient(configuration), Agents()
        return cls(api, agents, may_write=may_write, on_request=on_request, in_flight=in_flight)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        await self._agents.close()
        self._decoder.close()

    async def snapshot(
        self, namespace: str | None, *, with_network_policies: bool = True
    ) -> Snapshot:
        """Return all jobs and their children, of one namespace or of all.

        An operator that creates no NetworkPolicies need not have permission to list them.
        """
        children = {"labelSelector": f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"}
        outcomes = await asyncio.gather(
            self._list_jobs(namespace),
            self._list("Pod", namespace, children),
            self._list("Service", namespace, children),
            self._list("NetworkPolicy", namespace, children)
            if with_network_policies
            else _no_list(),
            return_exceptions=True,
        )
        listings = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome  # In list order and not in time order, so the log repeats one error.
            listings.append(outcome)
        return Snapshot(*listings)

    async def _list(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> Listing:
        """List objects in pages, because the JSON of thousands would need much memory at once.

        Raises:
            ClusterError: A request failed, or the list became too old between two pages.
        """
        items: list[Manifest] = []
        path = object_path(kind, namespace)
        pages = {**query, "limit": str(PAGE)}
        while True:
            page = await self._call("GET", path, query=pages, decode=list_decoder(kind))
            items += page["items"]
            if not page["metadata"].get("continue"):
                return Listing(items, int(page["metadata"]["resourceVersion"]))
            pages["continue"] = page["metadata"]["continue"]

    async def _list_jobs(self, namespace: str | None) -> Listing:
        try:
            return await self._list(KIND, namespace, {})
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            message = f"the CRD {PLURAL}.{API_GROUP} is not installed"
            raise ClusterError(message, status=error.status) from error

    async def get_job(self, key: Key) -> Manifest | None:
        """See `Cluster`."""
        found = await self._get(object_path(KIND, *key))
        return keep_used_fields(KIND, found) if found is not None else None

    async def list_pods(self, namespace: str, labels: Mapping[str, str], expected: int) -> Listing:
        """See `Cluster`."""
        selector = ",".join(f"{k}={v}" for k, v in labels.items())
        query = {"labelSelector": selector}
        if expected > PAGE:
            return await self._list("Pod", namespace, query)
        # A list without a limit can come from the API server's cache. A page comes from etcd.
        path = object_path("Pod", namespace)
        found = await self._call("GET", path, query=query, decode=list_decoder("Pod"))
        return Listing(found["items"], int(found["metadata"]["resourceVersion"]))

    async def create(
        self, manifest: Manifest, on_restored: Callable[[str], None] = lambda _: None
    ) -> Manifest:
        """See `Cluster`."""
        return await create_child(self._call, manifest, on_restored)

    async def delete_pod(
        self, namespace: str, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        """See `Cluster`."""
        body: Manifest = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._delete(object_path("Pod", namespace, name), body, uid)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> Manifest | None:
        """See `Cluster`."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        return await self._patch_pod(namespace, name, body)

    async def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """See `Cluster`. The kubelet ends a pod that exceeds its deadline, and keeps its logs."""
        body = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": 1}}
        await self._patch_pod(namespace, name, body)

    async def _patch_pod(self, namespace: str, name: str, body: Manifest) -> Manifest | None:
        path = object_path("Pod", namespace, name)
        try:
            pod = await self._call("PATCH", path, body=body)
        except ClusterError as error:
            if not await self._is_gone(path, body["metadata"]["uid"], error):
                raise
            return None
        return keep_used_fields("Pod", pod)

    async def delete_job(self, key: Key, uid: str) -> None:
        """See `Cluster`."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._delete(object_path(KIND, *key), body, uid)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """See `Cluster`."""
        metadata = job["metadata"]
        path = object_path(KIND, metadata["namespace"], metadata["name"]) + "/status"
        try:
            written = await self._call("PUT", path, body=status_document(job, status))
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ConflictError(str(error), status=error.status) from error
            raise
        return keep_used_fields(KIND, written)

    async def emit(self, job: Manifest, event: Event) -> None:
        """See `Cluster`."""
        body = event_document(job, event, datetime.now(UTC))
        path = object_path("Event", job["metadata"]["namespace"])
        try:
            await self._call("POST", path, body=body, decode=decode_nothing)
        except ClusterError as error:
            _log.warning("event %s was not published: %s", event.reason, error)

    async def newest_warning(self, namespace: str, uid: str) -> str | None:
        """See `Cluster`."""
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(PAGE)}
        found = await self._call("GET", object_path("Event", namespace), query=query)
        return newest_warning(found["items"])

    async def watch_agent_status(self, pod: PodView, revision: int, seconds: float) -> AgentAnswer:
        """See `Cluster`."""
        if not pod.ip:
            return AgentAnswer()
        return await self._agents.watch_status(pod.ip, pod.secret, revision, seconds)

    def send_order(self, address: str, secret: str, order: AttemptOrder) -> None:
        """See `Cluster`."""
        self._may_write()
        self._agents.send_order(address, secret, order)

    async def get_lease(self, namespace: str, name: str) -> Manifest | None:
        """See `Leases`."""
        return await self._get(object_path("Lease", namespace, name))

    async def create_lease(self, lease: Manifest) -> Manifest:
        """See `Leases`."""
        path = object_path("Lease", lease["metadata"]["namespace"])
        return await self._call("POST", path, body=lease)

    async def update_lease(self, lease: Manifest) -> Manifest:
        """See `Leases`."""
        metadata = lease["metadata"]
        if not metadata.get("resourceVersion"):
            raise ValueError(
                "metadata.resourceVersion must be set: without it the update would be unconditional"
            )
        path = object_path("Lease", metadata["namespace"], metadata["name"])
        return await self._call("PUT", path, body=lease)

    async def _get(self, path: str) -> Manifest | None:
        try:
            return await self._call("GET", path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _delete(self, path: str, body: Manifest, uid: str) -> None:
        try:
            await self._call("DELETE", path, body=body, decode=decode_nothing)
        except ClusterError as error:
            if not await self._is_gone(path, uid, error):
                raise

    async def _is_gone(self, path: str, uid: str, error: ClusterError) -> bool:
        """Return whether a change of the object with a uid failed because the object is gone.

        A conflict may also have another cause, for example a change at the same time.
        """
        if error.status == HTTPStatus.CONFLICT:
            found = await self._get(path)
            return found is None or found["metadata"]["uid"] != uid
        return error.status == HTTPStatus.NOT_FOUND

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        decode: Decode = json.loads,
    ) -> Manifest:
        """Send one request and return the decoded response.

        Raises:
            ConflictError: The server answered 409.
            ClusterError: The server refused the request otherwise, or did not answer.
            NotLeadingError: The request is a change, and another process may lead.
        """
        try:
            async with self._in_flight.hold(namespace_in(path)):
                document = await self._measure(method, path, body, query, decode=decode)
        except ClusterError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._reload_token()
            raise
        return document

    async def _measure(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        query: Mapping[str, str] | None,
        *,
        decode: Decode,
    ) -> Manifest:
        """Send one request, and report its outcome."""
        started = time.monotonic()

        def report(status: int) -> None:
            seconds = time.monotonic() - started
            self._on_request(Request(method, resource_of(path), status, seconds))

        try:
            answer = await self._send(method, path, body, query)
            document = await self._decoder.decode(answer, decode)
        except ValueError as error:
            report(0)
            raise ClusterError(f"the response to {method} {path} is not JSON") from error
        except ClusterError as error:
            report(error.status)
            raise
        report(HTTPStatus.OK)
        return document

    def _reload_token(self) -> None:
        """Reload the pod's token, because the client itself reads it only once a minute."""
        with contextlib.suppress(config.ConfigException):  # There is no token outside a pod.
            config.load_incluster_config(client_configuration=self._api.configuration)

    async def _send(
        self, method: str, path: str, body: Manifest | None, query: Mapping[str, str] | None
    ) -> bytes:
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": COMPONENT}
        headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        if method != "GET":
            # No await may separate this check from the request; `_in_flight` reserves a connection.
            self._may_write()
        try:
            response = await self._api.call_api(
                method, url, header_params=headers, body=body, _request_timeout=_REQUEST_SECONDS
            )
            text: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"the API server did not answer: {error!r}") from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(response.status, text, response.headers.get("Retry-After"))
        return text


def use_proxy_of_environment(configuration: client.Configuration) -> None:
    """Set the proxy from the environment, unless one is set.

    By default the client looks for a proxy and for a netrc file at every request.
    """
    server = urlsplit(configuration.host)
    if configuration.proxy is None and not proxy_bypass(server.hostname or ""):
        configuration.proxy = getproxies().get(server.scheme)
    configuration.client_session_kwargs = {"trust_env": False}


async def _no_list() -> Listing:
    return Listing((), 0)
