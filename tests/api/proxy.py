"""A fault proxy between the operator and the API server, with TLS on both sides.

The proxy forwards requests and watches as the user whose certificate it has, and injects the faults
of the test. It serves on its own thread. The test calls its methods from another thread.
"""

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web

from tests.api.faults import Fault, Request
from tests.harness.pki import Pair

T = TypeVar("T")

ADDRESS = "127.0.0.1"
_MAX_BODY = 16 << 20
_LIMIT_SECONDS = 15.0
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class _Watch:
    """An open watch."""

    def __init__(self, request: web.Request) -> None:
        self.muted = False
        self._transport = request.transport

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class FaultProxy:
    """A fault proxy for one API server. Use it as a context manager."""

    def __init__(self, upstream: str, ca_file: Path, client: Pair, server: Pair) -> None:
        """Prepare the proxy.

        A request with a bearer token is forwarded with that token and without the client
        certificate.

        Args:
            upstream: URL of the API server.
            ca_file: Certificate authority of the API server.
            client: Certificate that the proxy presents to the API server.
            server: Certificate that the proxy presents to the operator.
        """
        self._upstream = upstream
        self._trust = ssl.create_default_context(cafile=str(ca_file))
        self._identity = ssl.create_default_context(cafile=str(ca_file))
        self._identity.load_cert_chain(client.certificate, client.key)
        self._serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._serving.load_cert_chain(server.certificate, server.key)
        self.requests: list[Request] = []
        """All requests in the order of arrival."""
        self.expired_tokens: set[str] = set()
        """Expired tokens, for which the proxy answers 401."""
        self.port = 0
        self._faults: list[Fault] = []
        self._watches: set[_Watch] = set()
        self._lists: set[str] = set()
        """Paths with queries of all list requests so far."""
        self._stale_lists: dict[str, bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"https://{ADDRESS}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_thread(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._on_thread(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_SECONDS)

    # --- Called by the test -----------------------------------------------------------------------

    @contextlib.contextmanager
    def inject(self, **how: Any) -> Iterator[Fault]:
        """Inject a `Fault` until the end of the block."""
        fault = Fault(**how)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Break all connections and refuse new ones until the end of the block."""
        self._on_thread(self._runner.cleanup())
        try:
            yield
        finally:
            self._on_thread(self._serve())

    @property
    def open_watches(self) -> int:
        """Number of watches that are open now."""
        return len(self._watches)

    def cut_watches(self) -> int:
        """Break the connections of all watches, and return their number."""
        watches = list(self._watches)
        for watch in watches:
            self._loop.call_soon_threadsafe(watch.cut)
        return len(watches)

    def mute_watches(self) -> int:
        """Keep the present watches open without any further event, and return their number."""
        watches = list(self._watches)
        for watch in watches:
            watch.muted = True
        return len(watches)

    @contextlib.contextmanager
    def stale_reads(self) -> Iterator[None]:
        """Answer reads with the state of this moment until the end of the block.

        Watches send no events. Writes pass through, because a stale API server checks
        preconditions against the current data too.
        """
        self._stale_lists = self._on_thread(self._read_all_lists())
        self.mute_watches()
        try:
            yield
        finally:
            self._stale_lists = None
            self.cut_watches()

    def count(self, since: float = 0.0, **pattern: str) -> int:
        """Return the number of matching requests since a monotonic time."""
        wanted = Fault(**pattern)  # type: ignore[arg-type]  # patterns alone
        return sum(1 for r in list(self.requests) if r.at >= since and wanted.matches(r))

    # --- Called on the proxy's thread -------------------------------------------------------------

    def _on_thread(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(_LIMIT_SECONDS)

    async def _open(self) -> None:
        unlimited = aiohttp.ClientTimeout(total=None)
        self._certificate_session, self._token_session = (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust, limit=0),
                timeout=unlimited,
                auto_decompress=False,
            )
            for trust in (self._identity, self._trust)
        )
        await self._serve()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, ADDRESS, self.port, ssl_context=self._serving, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._certificate_session.close()
        await self._token_session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        watch = request.query.get("watch") in {"1", "true"}
        seen = Request.parse(time.monotonic(), request.method, request.path, watch=watch, body=body)
        self.requests.append(seen)
        if request.headers.get("Authorization", "").partition(" ")[2] in self.expired_tokens:
            return _refusal(Fault(status=401, message="Unauthorized"))
        if seen.verb == "list":
            self._lists.add(request.path_qs)
        fault = next((f for f in self._faults if f.matches(seen)), None)
        if fault is not None:
            fault.matched.append(seen)
            await asyncio.sleep(fault.delay)
            if fault.status is not None:
                return _refusal(fault)
        frozen = self._stale_answer(request, seen)
        if frozen is not None:
            return frozen
        lost = fault is not None and fault.lose_answer
        return await self._pass(request, body, watch=watch, lost=lost)

    async def _pass(
        self, request: web.Request, body: bytes, *, watch: bool, lost: bool
    ) -> web.StreamResponse:
        session = (
            self._token_session if "Authorization" in request.headers else self._certificate_session
        )
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        url = self._upstream + request.path_qs
        async with session.request(
            request.method, url, headers=headers, data=body or None
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            if watch and answer.status == web.HTTPOk.status_code:
                return await self._stream(request, answer, kept)
            text = await answer.read()
        if lost and request.transport is not None:
            request.transport.abort()
        return web.Response(status=answer.status, body=text, headers=kept)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        watch = _Watch(request)
        watch.muted = self._stale_lists is not None
        self._watches.add(watch)
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if not watch.muted:
                    await response.write(chunk)
            if watch.muted:
                await asyncio.Event().wait()  # Hold the watch open until the test cuts it.
        finally:
            self._watches.discard(watch)
        return response

    async def _read_all_lists(self) -> dict[str, bytes]:
        found = {}
        for path in self._lists:
            async with self._certificate_session.get(
                self._upstream + path,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as answer:
                found[path] = await answer.read()
        return found

    def _stale_answer(self, request: web.Request, seen: Request) -> web.Response | None:
        """Return the stale answer to a read, or None if the real API server must answer."""
        if self._stale_lists is None or seen.verb not in {"get", "list"}:
            return None
        if seen.verb == "list":
            text = self._stale_lists.get(request.path_qs)
            return (
                None if text is None else web.Response(body=text, content_type="application/json")
            )
        for path, text in self._stale_lists.items():
            listed = Request.parse(0, "GET", path.partition("?")[0])
            if listed.resource != seen.resource or listed.namespace not in {"", seen.namespace}:
                continue
            document = json.loads(text)
            kind = document["kind"].removesuffix("List")
            for item in document["items"]:
                meta = item["metadata"]
                if (meta["namespace"], meta["name"]) == (seen.namespace, seen.name):
                    whole = {"kind": kind, "apiVersion": document["apiVersion"], **item}
                    return web.json_response(whole)
        return None


def _refusal(fault: Fault) -> web.Response:
    text, headers = fault.answer()
    return web.Response(status=fault.status or 500, body=text, headers=headers)
