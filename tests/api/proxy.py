"""A fault proxy between the operator and the API server: TLS on both sides, watches included.

It passes everything on in the name of the user that it was made for, unless a fault that the test
has injected befalls a request. It runs on a thread of its own; its methods are for the test's.
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


class Proxy:
    """Stands before one API server. Use it as a context manager."""

    def __init__(self, upstream: str, ca_file: Path, client: Pair, server: Pair) -> None:
        """`client` is who it is to the API server, `server` who it is to the operator.

        A request that carries a token is passed on with that token, and without the certificate.
        """
        self._upstream = upstream
        self._trust = ssl.create_default_context(cafile=str(ca_file))
        self._identity = ssl.create_default_context(cafile=str(ca_file))
        self._identity.load_cert_chain(client.certificate, client.key)
        self._serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._serving.load_cert_chain(server.certificate, server.key)
        self.requests: list[Request] = []
        """All that came in, in their order."""
        self.refused_tokens: set[str] = set()
        """Tokens that have expired: whoever bears one is told 401."""
        self.port = 0
        self._faults: list[Fault] = []
        self._watches: set[_Watch] = set()
        self._lists: set[str] = set()
        """Paths and queries of all lists that were asked for."""
        self._frozen: dict[str, bytes] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"https://{ADDRESS}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_thread(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._on_thread(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_SECONDS)

    # --- What a test can do -----------------------------------------------------------------------

    @contextlib.contextmanager
    def fault(self, **how: Any) -> Iterator[Fault]:
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

    def cut_watches(self) -> int:
        """Break the connections of all watches. Returns how many."""
        watches = list(self._watches)
        for watch in watches:
            self._loop.call_soon_threadsafe(watch.cut)
        return len(watches)

    def mute_watches(self) -> int:
        """Let the watches that are open now stay open and silent. Returns how many."""
        watches = list(self._watches)
        for watch in watches:
            watch.muted = True
        return len(watches)

    @contextlib.contextmanager
    def lagging(self) -> Iterator[None]:
        """Be an API server that lags behind: reads show this moment until the end.

        Watches bring nothing. Changes go through, as those of a stale API server do: their
        preconditions are judged where the data are.
        """
        self._frozen = self._on_thread(self._read_all_lists())
        self.mute_watches()
        try:
            yield
        finally:
            self._frozen = None
            self.cut_watches()

    def count(self, since: float = 0.0, **pattern: str) -> int:
        """How many requests that match have come since a monotonic time."""
        wanted = Fault(**pattern)  # type: ignore[arg-type]  # patterns alone
        return sum(1 for r in list(self.requests) if r.at >= since and wanted.concerns(r))

    # --- On its own thread ------------------------------------------------------------------------

    def _on_thread(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(_LIMIT_SECONDS)

    async def _open(self) -> None:
        unlimited = aiohttp.ClientTimeout(total=None)
        self._mine, self._theirs = (
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
        await self._mine.close()
        await self._theirs.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        watch = request.query.get("watch") in {"1", "true"}
        seen = Request.read(time.monotonic(), request.method, request.path, watch=watch, body=body)
        self.requests.append(seen)
        if request.headers.get("Authorization", "").partition(" ")[2] in self.refused_tokens:
            return _refusal(Fault(status=401, message="Unauthorized"))
        if seen.verb == "list":
            self._lists.add(request.path_qs)
        fault = next((f for f in self._faults if f.concerns(seen)), None)
        if fault is not None:
            fault.befallen.append(seen)
            await asyncio.sleep(fault.delay)
            if fault.status is not None:
                return _refusal(fault)
        frozen = self._read_frozen(request, seen)
        if frozen is not None:
            return frozen
        lost = fault is not None and fault.lose_answer
        return await self._pass(request, body, watch=watch, lost=lost)

    async def _pass(
        self, request: web.Request, body: bytes, *, watch: bool, lost: bool
    ) -> web.StreamResponse:
        session = self._theirs if "Authorization" in request.headers else self._mine
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
        watch.muted = self._frozen is not None
        self._watches.add(watch)
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if not watch.muted:
                    await response.write(chunk)
            if watch.muted:
                await asyncio.Event().wait()  # Until somebody cuts it.
        finally:
            self._watches.discard(watch)
        return response

    async def _read_all_lists(self) -> dict[str, bytes]:
        found = {}
        for path in self._lists:
            async with self._mine.get(
                self._upstream + path,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as answer:
                found[path] = await answer.read()
        return found

    def _read_frozen(self, request: web.Request, seen: Request) -> web.Response | None:
        """What a lagging API server says to a read; None for what goes to the real one."""
        if self._frozen is None or seen.verb not in {"get", "list"}:
            return None
        if seen.verb == "list":
            text = self._frozen.get(request.path_qs)
            return (
                None if text is None else web.Response(body=text, content_type="application/json")
            )
        for path, text in self._frozen.items():
            listed = Request.read(0, "GET", path.partition("?")[0])
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
