"""Kopf handlers of the jobs, which update the cache and add keys to the queue.

They are event handlers only, without finalizers, daemons, timers or annotations on users' objects
(docs/develop/decisions/0002-kopf-event-only.md).
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from ddp_operator.api.base import API_GROUP, API_VERSION_NAME, KIND, PLURAL
from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.cluster.kube.used_fields import keep_used_fields
from ddp_operator.limits import WATCH_PAUSES
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue

FIRST_PAGE = 50
"""Number of objects in one answer to kopf's first list. kopf decodes all of them at once."""


def build_registry(cache: Cache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """Return the handlers, which update the cache and add keys to the queue.

    Args:
        cache: Newest known jobs and children.
        queue: Keys of the jobs to reconcile.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return _log_in_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(API_GROUP, API_VERSION_NAME, PLURAL, registry=registry)
    async def on_job(event: Any, **_: Any) -> None:
        job = _take(event)
        deleted = event["type"] == "DELETED"
        queue.add(cache.drop_job(job) if deleted else cache.put_job(job))

    return registry


def _take(event: Any) -> Manifest:
    """Return the used fields of an event's job, and remove the large rest from the event.

    kopf leaves each event in a reference cycle. With all its parts, the events of a thousand jobs
    would stay in memory until a garbage collection, which would stop the event loop for as long as
    it takes to find them.
    """
    raw = event["object"]
    used = keep_used_fields(KIND, raw)
    for part in raw.keys() - {"apiVersion", "kind", "metadata"}:
        del raw[part]
    raw["metadata"].pop("managedFields", None)
    return used


def build_settings() -> kopf.OperatorSettings:
    """Return kopf's settings, with which it writes nothing."""
    settings = kopf.OperatorSettings()
    settings.watching.chunk_size = FIRST_PAGE
    # The task of an object keeps its last event until it has been idle for this long.
    settings.queueing.idle_timeout = 0.2
    settings.posting.enabled = False
    # Otherwise kopf needs permission to watch all namespaces and CRDs of the cluster.
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.error_backoffs = _Backoffs()
    # Event handlers add no finalizer. This keeps even kopf's default one off all objects.
    settings.persistence.finalizer = f"{API_GROUP}/unused"
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    return settings


class NoMemories(ResourceMemories):
    """Kopf's memories of objects, of which none is kept.

    Event handlers need none. Kopf would keep a dozen small objects for each job, and those of a job
    that is deleted between a watch and the next list would stay for ever. The package's metadata
    restricts kopf to releases with this private class.
    """

    async def recall(self, *args: Any, **kwargs: Any) -> ResourceMemory:
        """Return a new memory without keeping it."""
        return await super().recall(*args, **(kwargs | {"ephemeral": True}))


def _log_in_with_service_account(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Return the pod's service account with the address that all other requests use.

    Kopf itself uses the name kubernetes.default.svc, which not every pod can resolve.
    """
    account = kopf.login_with_service_account(**kwargs)
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if account is None or not host or not port:
        return None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return dataclasses.replace(account, server=f"https://{address}")


class _Backoffs:
    """Endless pauses between attempts to list or watch.

    By default kopf stops within a minute of server errors or missing permissions.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(WATCH_PAUSES, itertools.repeat(WATCH_PAUSES[-1]))


class _NoDiffs(kopf.DiffBaseStorage):
    """No last handled state: all objects have the same empty one.

    Kopf copies each object several times to compute what changed since its last handling. Event
    handlers never ask for that, and with a thousand objects it took an eighth of the CPU time.
    """

    def build(self, **_: Any) -> Any:
        """Return an empty state."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return no state."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class _NoProgress(kopf.ProgressStorage):
    """No progress of handlers, because an event handler runs once."""

    def fetch(self, **_: Any) -> None:
        """Return no progress."""

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Remove nothing."""

    def touch(self, **_: Any) -> None:
        """Change nothing."""

    def clear(self, *, essence: Any) -> Any:
        """Return the state as it is, because it has no progress in it."""
        return essence
