"""The administrator's asynchronous client: what tests read and change besides the operator."""

import asyncio
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

from ddp_operator.cluster.kube import KubeCluster
from tests.harness import paths
from tests.harness.cluster import Cluster
from tests.harness.pki import Authority

JSON = dict[str, Any]

_ROOTS = {
    "ddpjobs": "/apis/ddp-trainer.dev/v1alpha1",
    "resourcequotas": "/api/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
    "events": "/api/v1",
    "serviceaccounts": "/api/v1",
    "leases": "/apis/coordination.k8s.io/v1",
}
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


_TRIES, _PATIENCE_SECONDS = 20, 0.2


class RefusedError(AssertionError):
    """The API server refused a request of the test. The text is its sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def path_of(resource: str, namespace: str, name: str | None = None, part: str | None = None) -> str:
    """Path of a namespaced resource, of one object, or of a part of it, as its status."""
    return "/".join(
        p for p in (_ROOTS[resource], "namespaces", namespace, resource, name, part) if p
    )


class Api:
    """Requests to the API server; make it with `connect`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, cluster: Cluster) -> AsyncIterator["Api"]:
        """A client with the administrator's certificate."""
        authority = Authority(paths.STATE / "pki")
        pair = authority.files("admin")
        context = ssl.create_default_context(cafile=str(authority.pair.certificate))
        context.load_cert_chain(pair.certificate, pair.key)
        connector = aiohttp.TCPConnector(ssl=context, limit=64)
        async with aiohttp.ClientSession(cluster.api_url, connector=connector) as session:
            yield cls(session)

    async def call(
        self,
        method: str,
        path: str,
        body: JSON | None = None,
        query: Mapping[str, str] | None = None,
    ) -> JSON:
        """One request; the answer. A server that asks to wait is asked again.

        Raises:
            RefusedError: The API server refused it.
        """
        for _ in range(_TRIES):
            try:
                return await self._call_once(method, path, body, query)
            except RefusedError as refused:
                if refused.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            # As while the storage of a kind whose CRD has changed begins anew.
            await asyncio.sleep(_PATIENCE_SECONDS)
        return await self._call_once(method, path, body, query)

    async def _call_once(
        self, method: str, path: str, body: JSON | None, query: Mapping[str, str] | None
    ) -> JSON:
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        async with self._session.request(
            method, path, json=body, params=query, headers=patch
        ) as answer:
            document: JSON = await answer.json(content_type=None)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise RefusedError(answer.status, document.get("message", str(document)))
            return document

    async def find(self, path: str) -> JSON | None:
        """The object at a path, or None when there is none."""
        try:
            return await self.call("GET", path)
        except RefusedError as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def list(self, resource: str, namespace: str, labels: str = "") -> list[JSON]:
        """All objects of a resource in a namespace, or those that a label selector chooses."""
        query = {"labelSelector": labels} if labels else None
        items: list[JSON] = (await self.call("GET", path_of(resource, namespace), query=query))[
            "items"
        ]
        return items

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Lines of an answer that does not end."""
        endless = aiohttp.ClientTimeout(total=None)
        async with self._session.get(
            path, params=query, timeout=endless, read_bufsize=1 << 21
        ) as answer:
            assert answer.status == HTTPStatus.OK, await answer.text()
            async for line in answer.content:
                yield line

    async def make_namespace(self, name: str) -> str:
        """A namespace under Restricted Pod Security that pods can be created in; its name."""
        metadata = {"name": name, "labels": _RESTRICTED}
        await self.call("POST", "/api/v1/namespaces", {"metadata": metadata})
        account = path_of("serviceaccounts", name, "default")

        async def exists() -> bool:
            return await self.find(account) is not None

        await eventually(exists, f"the service account of {name}")
        return name

    async def apply_job(self, namespace: str, manifest: JSON) -> JSON:
        """Create a job in a namespace, as kubectl does: unknown fields are refused."""
        metadata = {**manifest["metadata"], "namespace": namespace}
        body = {**manifest, "metadata": metadata}
        strict = {"fieldValidation": "Strict"}
        return await self.call("POST", path_of("ddpjobs", namespace), body, strict)

    async def edit_job(self, namespace: str, name: str, spec: Mapping[str, Any]) -> JSON:
        """Change fields of a job's spec."""
        return await self.call("PATCH", path_of("ddpjobs", namespace, name), {"spec": dict(spec)})


async def eventually(
    holds: Callable[[], Awaitable[bool]], what: str, seconds: float = 30.0, every: float = 0.05
) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: It does not within the time.
    """
    deadline = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(every)


async def always(holds: Callable[[], Awaitable[bool]], what: str, seconds: float) -> None:
    """See that a condition holds at any time of a period.

    Raises:
        AssertionError: It did not once.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await holds(), f"no longer: {what}"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def operator_client(
    kubeconfig: Path,
    may_write: Callable[[], None] = lambda: None,
    heard: Callable[[bool], None] = lambda _: None,
) -> AsyncIterator[KubeCluster]:
    """The operator's own client, with the certificate of a kubeconfig."""
    # The library reads the variable KUBECONFIG once, when it is imported.
    with patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)):
        cluster = await KubeCluster.connect(in_flight=64, may_write=may_write, heard=heard)
    try:
        yield cluster
    finally:
        await cluster.close()
