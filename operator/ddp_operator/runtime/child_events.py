"""Receive the events of the children's watches: update the cache and queue the changed jobs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from ddp_operator.builders.kinds import KINDS
from ddp_operator.cluster.base import ClusterError, Key, Listing, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue
from ddp_operator.runtime.workers import WorkerActivity

_log = logging.getLogger(__name__)

_REFUSED = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}


class ChildEvents:
    """Consumer of the children's watches, as `ddp_operator.cluster.kube.watch.Sink` defines it."""

    def __init__(self, cache: Cache, queue: WorkQueue[Key], activity: WorkerActivity) -> None:
        """Create a consumer. `activity` receives messages about refused watches."""
        self._cache, self._queue, self._activity = cache, queue, activity
        self._errors: dict[tuple[str, str | None], str] = {}
        """Logged errors, by kind and namespace, of the watches that fail."""

    def put(self, kind: str, child: Manifest) -> None:
        """Store a new or changed child, and queue its job."""
        self._wake(self._cache.put_child(kind, child))

    def drop(self, kind: str, child: Manifest) -> None:
        """Remove a deleted child, and queue its job."""
        self._wake(self._cache.drop_child(kind, child))

    @contextmanager
    def relist(self, kind: str, namespace: str | None) -> Iterator[Callable[[Listing], None]]:
        """Replace all children of a kind, and queue the jobs whose children differ."""
        with self._cache.pending_request() as request:

            def take(listing: Listing) -> None:
                for key in request.replace_kind(kind, namespace, listing):
                    self._wake(key)

            yield take

    def report(self, kind: str, namespace: str | None, error: ClusterError | None) -> None:
        """Log the first of equal errors, and the next success. Update the state of /readyz."""
        watch = (kind, namespace)
        if error is None and watch not in self._errors:
            return
        children = KINDS[kind].plural + (f" of the namespace {namespace}" if namespace else "")
        refused = self._activity.refused_watches
        refused.pop(watch, None)
        if error is None:
            del self._errors[watch]
            _log.info("the %s are watched again", children)
            return
        if error.status in _REFUSED:
            refused[watch] = f"the {children} are not watched: {error}"
        if self._errors.get(watch) != str(error):
            self._errors[watch] = str(error)
            _log.warning("the %s are not watched: %s", children, error)

    def _wake(self, key: Key | None) -> None:
        if key is not None:
            self._queue.add(key, urgent=True)
