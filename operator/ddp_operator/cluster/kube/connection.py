"""Connection to one API server through the low-level call of kubernetes.aio.

Manifests stay dictionaries, because the client's models refuse unknown pod fields and take most of
the time of a request (docs/develop/decisions/0003-client.md).
"""

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from ddp_operator.cluster.base import ClusterError, Manifest, Request
from ddp_operator.cluster.kube.documents import COMPONENT, namespace_in, refusal, resource_of
from ddp_operator.cluster.kube.fair_semaphore import FairSemaphore
from ddp_operator.cluster.kube.lists import Decode, DecoderThread, decode_nothing
from ddp_operator.limits import REQUESTS_IN_FLIGHT, SILENT_SECONDS

_log = logging.getLogger(__name__)

_MERGE_PATCH = "application/merge-patch+json"
_REQUEST = aiohttp.ClientTimeout(total=30)
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class ApiConnection:
    """Sends requests to one API server. Create it with `connect` and end it with `close`."""

    def __init__(
        self,
        api: client.ApiClient,
        *,
        may_write: Callable[[], None] = lambda: None,
        on_request: Callable[[Request], None] = lambda _: None,
        in_flight: int = REQUESTS_IN_FLIGHT,
    ) -> None:
        """Create a connection.

        Args:
            api: Client of the API server.
            may_write: Function that is called before each change. It raises an error if this
                process must not write.
            on_request: Function that is called after each request.
            in_flight: Maximum number of concurrent requests.
        """
        self._api = api
        self.may_write, self._on_request = may_write, on_request
        self._in_flight = FairSemaphore(in_flight)
        self._decoder = DecoderThread()

    @classmethod
    async def connect(
        cls,
        *,
        in_flight: int = REQUESTS_IN_FLIGHT,
        may_write: Callable[[], None] = lambda: None,
        on_request: Callable[[Request], None] = lambda _: None,
    ) -> Self:
        """Connect with the pod's service account if it has one, otherwise with the kubeconfig."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        # No limit: `_in_flight` bounds requests, and streams must not take their connections.
        configuration.connection_pool_maxsize = 0
        use_proxy_of_environment(configuration)
        api = client.ApiClient(configuration)
        return cls(api, may_write=may_write, on_request=on_request, in_flight=in_flight)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        self._decoder.close()

    async def get(self, path: str) -> Manifest | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self.call("GET", path)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def delete(self, path: str, body: Manifest, uid: str) -> None:
        """Delete the object with a uid, if it still exists. `body` contains the preconditions."""
        try:
            await self.call("DELETE", path, body=body, decode=decode_nothing)
        except ClusterError as error:
            if not await self.is_gone(path, uid, error):
                raise

    async def is_gone(self, path: str, uid: str, error: ClusterError) -> bool:
        """Return whether a change failed because the object with the given uid no longer exists."""
        if error.status == HTTPStatus.CONFLICT:
            found = await self.get(path)
            return found is None or found["metadata"]["uid"] != uid
        return error.status == HTTPStatus.NOT_FOUND

    async def call(
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
            ClusterError: The server refused the request for another reason, or did not answer.
            NotLeadingError: The request is a change, and another process may be the leader.
        """
        try:
            async with self._in_flight.hold(namespace_in(path)):
                document = await self._measure(method, path, body, query, decode=decode)
        except ClusterError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._reload_token()
            raise
        return document

    async def stream(
        self, path: str, query: Mapping[str, str], silent_seconds: float = SILENT_SECONDS
    ) -> AsyncGenerator[bytes]:
        """Yield the pieces of a response that stays open, until one side closes it.

        The first piece is empty and shows that the server has accepted the request. The stream may
        last for hours and does not count as one of the `in_flight` requests. It also ends when the
        connection breaks, and when no byte arrives for `silent_seconds`. Close it with `aclosing`.

        Raises:
            ClusterError: The server refused the request, or did not answer.
        """
        limits = aiohttp.ClientTimeout(total=None, connect=30, sock_read=silent_seconds)
        try:
            response = await self._open("GET", path, None, query, limits)
            await _check(response)
        except _FAILURES as error:
            raise _no_answer(error) from error
        except ClusterError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._reload_token()
            raise
        try:
            yield b""
            async for piece in response.response.content.iter_any():
                yield piece
        except _FAILURES as error:
            _log.debug("the stream of %s broke: %r", path, error)
        finally:
            response.response.close()

    async def _measure(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        query: Mapping[str, str] | None,
        *,
        decode: Decode,
    ) -> Manifest:
        """Send one request, and report its outcome to `on_request`."""
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
        """Reload the pod's token, because the client reads the file only once a minute."""
        with contextlib.suppress(config.ConfigException):  # There is no token outside a pod.
            config.load_incluster_config(client_configuration=self._api.configuration)

    async def _send(
        self, method: str, path: str, body: Manifest | None, query: Mapping[str, str] | None
    ) -> bytes:
        try:
            response = await self._open(method, path, body, query, _REQUEST)
            await _check(response)
            text: bytes = await response.read()
        except _FAILURES as error:
            raise _no_answer(error) from error
        return text

    async def _open(
        self,
        method: str,
        path: str,
        body: Manifest | None,
        query: Mapping[str, str] | None,
        limits: aiohttp.ClientTimeout,
    ) -> Any:
        """Send a request. Return the response of the client before its body is read."""
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": COMPONENT}
        headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        if method != "GET":
            # No await may separate this check from the request; `_in_flight` reserves a connection.
            self.may_write()
        return await self._api.call_api(
            method, url, header_params=headers, body=body, _request_timeout=limits
        )


async def _check(response: Any) -> None:
    """Raise ClusterError for a response with an HTTP status of 400 or above."""
    if response.status >= HTTPStatus.BAD_REQUEST:
        text = await response.read()
        raise refusal(response.status, text, response.headers.get("Retry-After"))


def _no_answer(error: Exception) -> ClusterError:
    return ClusterError(f"the API server did not answer: {error!r}")


def use_proxy_of_environment(configuration: client.Configuration) -> None:
    """Set the client's proxy from the environment, unless a proxy is already set.

    Otherwise the client would look for a proxy and a netrc file at every request.
    """
    server = urlsplit(configuration.host)
    if configuration.proxy is None and not proxy_bypass(server.hostname or ""):
        configuration.proxy = getproxies().get(server.scheme)
    configuration.client_session_kwargs = {"trust_env": False}
