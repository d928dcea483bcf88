"""The administrator's asynchronous API client, with which tests read and change objects."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
from kubernetes.aio.config import kube_config

from ddp_operator.cluster.base import Request
from ddp_operator.cluster.kube.cluster import KubeCluster
from tests.harness import paths
from tests.harness.cluster import Cluster
from tests.harness.pki import Authority

JSON = dict[str, Any]

_ROOTS = {
    "ddpjobs": "/apis/ddp-trainer.dev/v1alpha1",
    "resourcequotas": "/api/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "workloads": "/apis/scheduling.k8s.io/v1alpha1",
    "events": "/api/v1",
    "serviceaccounts": "/api/v1",
    "leases": "/apis/coordination.k8s.io/v1",
}
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


_TRIES, _RETRY_SECONDS = 20, 0.2


class RefusedError(AssertionError):
    """The API server rejected a request of the test. The text is the server's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def path_of(resource: str, namespace: str, name: str | None = None, part: str | None = None) -> str:
    """Return the path of a namespaced resource, of one object, or of a subresource of it."""
    return "/".join(
        p for p in (_ROOTS[resource], "namespaces", namespace, resource, name, part) if p
    )


def _message(body: str) -> str:
    """Return the message of an error. It is plain text while the server begins to serve a kind."""
    try:
        document = json.loads(body)
    except ValueError:
        return body
    return str(document.get("message", document)) if isinstance(document, dict) else body


class Api:
    """A client of the API server. Create it with `connect`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, cluster: Cluster, user: str | None = None) -> AsyncIterator["Api"]:
        """Yield a client with the administrator's certificate, which may impersonate a user."""
        authority = Authority(paths.STATE / "pki")
        pair = authority.files("admin")
        context = ssl.create_default_context(cafile=str(authority.pair.certificate))
        context.load_cert_chain(pair.certificate, pair.key)
        connector = aiohttp.TCPConnector(ssl=context, limit=64)
        headers = {"Impersonate-User": user} if user else {}
        async with aiohttp.ClientSession(
            cluster.api_url, connector=connector, headers=headers
        ) as session:
            yield cls(session)

    async def call(
        self,
        method: str,
        path: str,
        body: JSON | None = None,
        query: Mapping[str, str] | None = None,
    ) -> JSON:
        """Send one request and return the answer. Retry while the server answers 429.

        Raises:
            RefusedError: The API server rejected the request.
        """
        for _ in range(_TRIES):
            try:
                return await self._call_once(method, path, body, query)
            except RefusedError as refused:
                if refused.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            # The server answers 429 while it reopens the storage of a kind whose CRD has changed.
            await asyncio.sleep(_RETRY_SECONDS)
        return await self._call_once(method, path, body, query)

    async def _call_once(
        self, method: str, path: str, body: JSON | None, query: Mapping[str, str] | None
    ) -> JSON:
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        async with self._session.request(
            method, path, json=body, params=query, headers=patch
        ) as answer:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise RefusedError(answer.status, _message(await answer.text()))
            document: JSON = await answer.json(content_type=None)
            return document

    async def find(self, path: str) -> JSON | None:
        """Return the object at a path, or None if there is none."""
        try:
            return await self.call("GET", path)
        except RefusedError as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def list(self, resource: str, namespace: str, labels: str = "") -> list[JSON]:
        """Return all objects of a resource in a namespace, or those that match a label selector."""
        query = {"labelSelector": labels} if labels else None
        items: list[JSON] = (await self.call("GET", path_of(resource, namespace), query=query))[
            "items"
        ]
        return items

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the lines of an answer that does not end."""
        endless = aiohttp.ClientTimeout(total=None)
        async with self._session.get(
            path, params=query, timeout=endless, read_bufsize=1 << 21
        ) as answer:
            assert answer.status == HTTPStatus.OK, await answer.text()
            async for line in answer.content:
                yield line

    async def create_namespace(self, name: str) -> str:
        """Create a namespace with Restricted Pod Security that accepts pods. Return its name."""
        metadata = {"name": name, "labels": _RESTRICTED}
        await self.call("POST", "/api/v1/namespaces", {"metadata": metadata})
        account = path_of("serviceaccounts", name, "default")

        async def exists() -> bool:
            return await self.find(account) is not None

        await eventually(exists, f"the service account of {name}")
        return name

    async def apply_job(self, namespace: str, manifest: JSON) -> JSON:
        """Create a job in a namespace. Unknown fields are rejected, as with kubectl."""
        metadata = {**manifest["metadata"], "namespace": namespace}
        body = {**manifest, "metadata": metadata}
        strict = {"fieldValidation": "Strict"}
        return await self.call("POST", path_of("ddpjobs", namespace), body, strict)

    async def edit_job(self, namespace: str, name: str, spec: Mapping[str, Any]) -> JSON:
        """Change fields of a job's spec."""
        return await self.call("PATCH", path_of("ddpjobs", namespace, name), {"spec": dict(spec)})


async def eventually(
    holds: Callable[[], Awaitable[bool]],
    condition: str,
    seconds: float = 30.0,
    every: float = 0.05,
) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: The condition did not hold within the time.
    """
    deadline = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"condition not met within {seconds:.0f} s: {condition}")
        await asyncio.sleep(every)


async def always(holds: Callable[[], Awaitable[bool]], condition: str, seconds: float) -> None:
    """Check that a condition holds throughout a period.

    Raises:
        AssertionError: The condition did not hold at some check.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await holds(), f"condition no longer met: {condition}"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def operator_client(
    kubeconfig: Path,
    may_write: Callable[[], None] = lambda: None,
    on_request: Callable[[Request], None] = lambda _: None,
) -> AsyncIterator[KubeCluster]:
    """Yield the operator's own client, with the certificate of a kubeconfig."""
    # The library reads the variable KUBECONFIG once, when it is imported.
    with patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)):
        cluster = await KubeCluster.connect(
            in_flight=64, may_write=may_write, on_request=on_request
        )
    try:
        yield cluster
    finally:
        await cluster.close()
