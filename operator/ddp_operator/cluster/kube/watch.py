"""Watch children and Kubernetes nodes, with one watch per kind and namespace.

A watch first lists its objects in pages, which also shows which known objects are gone. Then it
reads one stream of events from the version of the list on. Each line is decoded by orjson, reduced
to the used fields and passed to the sink, without tasks or queues in between.

- After a stream ends, breaks or is silent, a new one continues from the last version, without a
  list. The server ends each stream after some minutes. Bookmarks update the version while nothing
  changes.
- When the server no longer has that version (410), or sends an error or a line that is no event,
  the watch lists again.
- After other errors the watch tries again forever, after 1, 2, 3, 5, 5 … seconds.
- After some milliseconds of lines the watch lets the event loop do other work.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from http import HTTPStatus
from typing import NoReturn, Protocol

from ddp_operator.cluster.base import ClusterError, Listing, Manifest
from ddp_operator.cluster.kube.connection import ApiConnection
from ddp_operator.cluster.kube.object_lists import MANAGED, list_pages
from ddp_operator.cluster.kube.paths import NODE, object_path
from ddp_operator.cluster.kube.watch_events import (
    Backoffs,
    Lines,
    WatchEvent,
    decode_event,
    must_list,
)
from ddp_operator.limits import SILENT_SECONDS

_log = logging.getLogger(__name__)

_SLICE_SECONDS = 0.004
"""Maximum seconds for which one watch processes lines before other tasks run."""
_STREAM_SECONDS = (300, 600)
"""Minimum and maximum seconds until the server ends a stream. Each stream gets a random time in
this range, so that the streams do not all end at once."""
_SHORT_SECONDS = 5.0
"""Minimum seconds for which a stream without a line must last to count as a success."""


class Sink(Protocol):
    """Consumer of the objects that a watch delivers."""

    def put(self, kind: str, child: Manifest) -> None:
        """Store a new or changed object."""

    def drop(self, kind: str, child: Manifest) -> None:
        """Remove a deleted object."""

    def relist(
        self, kind: str, namespace: str | None
    ) -> AbstractContextManager[Callable[[Listing], None]]:
        """Begin a list of all objects. The caller adds the listed objects within the context."""

    def report(self, kind: str, namespace: str | None, error: ClusterError | None) -> None:
        """Receive the error of the last list or stream, or None after a success."""


class ListWatch:
    """Watch of the objects of one kind, in one namespace or in all."""

    def __init__(
        self,
        connection: ApiConnection,
        kind: str,
        namespace: str | None,
        sink: Sink,
        silent_seconds: float = SILENT_SECONDS,
        *,
        query: Mapping[str, str] = MANAGED,
    ) -> None:
        """Create a watch that passes the objects that match `query` to `sink`."""
        self._connection, self._kind, self._namespace = connection, kind, namespace
        self._sink, self._silent_seconds, self._query = sink, silent_seconds, query
        self._version: str | None = None
        """Version of the last line or list, or None if a list must come first."""
        self._backoffs = Backoffs()

    async def run(self) -> NoReturn:
        """List and watch the objects forever."""
        while True:
            pause = await self._try_once()
            await asyncio.sleep(pause)

    async def _try_once(self) -> float:
        """List if necessary, and read one stream. Return the seconds until the next call."""
        try:
            if self._version is None:
                self._version = await self._list()
            await self._follow(self._version)
        except ClusterError as error:
            self._version = None if must_list(error) else self._version
            if error.status == HTTPStatus.GONE:
                return self._backoffs.after_end()
            self._sink.report(self._kind, self._namespace, error)
            return self._backoffs.after(error)
        except Exception as error:  # noqa: BLE001 (an unexpected error must not stop the process)
            _log.exception("the watch of %s failed", self._kind)
            self._version = None
            return self._backoffs.after(ClusterError(repr(error)))
        return self._backoffs.after_end()

    async def _list(self) -> str:
        with self._sink.relist(self._kind, self._namespace) as take:
            listing = await list_pages(self._connection, self._kind, self._namespace, self._query)
            take(listing)
        return str(listing.version)

    async def _follow(self, version: str) -> None:
        """Read one stream, beginning at a version, until it ends."""
        opened = began = time.monotonic()
        lines = Lines()
        async with aclosing(self._stream(version)) as pieces:
            async for piece in pieces:
                self._record_piece(piece)
                for line in lines.feed(piece):
                    self._take(decode_event(self._kind, line))
                    if time.monotonic() - began > _SLICE_SECONDS:
                        await asyncio.sleep(0)
                        began = time.monotonic()
        if time.monotonic() - opened > _SHORT_SECONDS:
            self._backoffs.reset()

    def _stream(self, version: str) -> AsyncGenerator[bytes]:
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*_STREAM_SECONDS)),  # noqa: S311 (jitter)
        }
        path = object_path(self._kind, self._namespace)
        return self._connection.stream(path, query, self._silent_seconds)

    def _take(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._sink.drop(self._kind, event.object)
        elif event.type in {"ADDED", "MODIFIED"}:
            self._sink.put(self._kind, event.object)
        self._version = event.version

    def _record_piece(self, piece: bytes) -> None:
        if piece:
            self._backoffs.reset()
        else:  # The server has accepted the stream.
            self._sink.report(self._kind, self._namespace, None)


async def watch_children(
    connection: ApiConnection, kinds: Iterable[str], namespaces: Sequence[str], sink: Sink
) -> None:
    """Watch the children of these kinds forever, in the given namespaces or in all."""
    async with asyncio.TaskGroup() as tasks:
        for kind in kinds:
            for namespace in namespaces or (None,):
                tasks.create_task(ListWatch(connection, kind, namespace, sink).run())


async def watch_nodes(connection: ApiConnection, sink: Sink) -> NoReturn:
    """Watch all Kubernetes nodes forever."""
    await ListWatch(connection, NODE, None, sink, query={}).run()
