"""Decode the lines of a watch's stream, and decide how to continue after an error."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

import orjson

from ddp_operator.cluster.base import ClusterError, Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.limits import WATCH_PAUSES

_KEEP_VERSION = {0, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}


class StaleError(ClusterError):
    """Error after which a stream cannot continue from its last version."""


class WatchEvent(NamedTuple):
    """One line of a watch's stream."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    object: Manifest
    """Used fields of the object; empty for a bookmark."""
    version: str
    """Resource version from which a new stream can continue after this line."""


def decode_event(kind: str, line: bytes) -> WatchEvent:
    """Decode one line of the stream that watches a kind.

    Raises:
        StaleError: The line is an error from the server or not an event.
    """
    try:
        event = orjson.loads(line)
        what, found = event["type"], event["object"]
        if what == "ERROR":
            raise StaleError(str(found.get("message")), status=int(found.get("code") or 0))
        version = str(found["metadata"]["resourceVersion"])
        kept = {} if what == "BOOKMARK" else keep_used_fields(kind, found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StaleError(f"a line is not a watch event: {error!r}") from error
    return WatchEvent(what, kept, version)


class Lines:
    """Splitter that joins pieces of a stream and returns whole lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """Pieces of the line that has no end yet."""

    def feed(self, piece: bytes) -> Iterable[bytes]:
        """Add a piece. Return the lines that it completes, without empty ones."""
        first, *rest = piece.split(b"\n")
        self._begun.append(first)
        if not rest:
            return ()
        lines = [b"".join(self._begun), *rest[:-1]]
        self._begun = [rest[-1]]
        return filter(None, map(bytes.strip, lines))


class Backoffs:
    """Pauses after failures in a row: 1, 2, 3, 5, 5 … seconds."""

    def __init__(self) -> None:
        self.failures = 0

    def reset(self) -> None:
        """Record a success, so that the pauses start again at 1 s."""
        self.failures = 0

    def after(self, error: ClusterError) -> float:
        """Record a failure. Return the seconds to wait, at least as many as the server asks for."""
        pause = WATCH_PAUSES[min(self.failures, len(WATCH_PAUSES) - 1)]
        self.failures += 1
        return max(pause, error.retry_after or 0.0)

    def after_end(self) -> float:
        """Record the end of a stream, or a 410. Return the pause: 0 for the first in a row."""
        pause = (
            0.0 if self.failures == 0 else WATCH_PAUSES[min(self.failures, len(WATCH_PAUSES)) - 1]
        )
        self.failures += 1
        return pause


def must_list(error: ClusterError) -> bool:
    """Return whether a new list is needed after an error. Otherwise the stream is opened again."""
    if isinstance(error, StaleError):
        return True
    return error.status not in _KEEP_VERSION and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
