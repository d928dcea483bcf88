"""Kopf handlers of DDPJobs. They update the cache and add keys to the queue.

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
"""Number of objects per answer in kopf's first list. Kopf decodes a whole answer at once."""


def build_registry(cache: Cache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """Return handlers that update the cache and add the keys of changed jobs to the queue.

    Args:
        cache: Newest observed jobs and children.
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
    """Return the used fields of the job in an event, and empty the event.

    Kopf leaves each event in a reference cycle. Full events of a thousand jobs would stay in memory
    until a garbage collection, which would block the event loop for long.
    """
    raw = event["object"]
    used = keep_used_fields(KIND, raw)
    for part in raw.keys() - {"apiVersion", "kind", "metadata"}:
        del raw[part]
    raw["metadata"].pop("managedFields", None)
    return used


def build_settings() -> kopf.OperatorSettings:
    """Return settings with which kopf writes nothing to the cluster."""
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
    """Replacement for kopf's memories of objects. It stores nothing.

    Event handlers need no memories. Kopf would keep a dozen small objects for each job. Those of a
    job that is deleted between a watch and the next list would stay forever. The package's metadata
    restricts kopf to releases with this private class.
    """

    async def recall(self, *args: Any, **kwargs: Any) -> ResourceMemory:
        """Return a new memory without storing it."""
        return await super().recall(*args, **(kwargs | {"ephemeral": True}))


def _log_in_with_service_account(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Return credentials from the service account, with the API server's IP address.

    All other requests use this address. By default kopf uses the name kubernetes.default.svc, which
    some pods cannot resolve.
    """
    account = kopf.login_with_service_account(**kwargs)
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if account is None or not host or not port:
        return None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return dataclasses.replace(account, server=f"https://{address}")


class _Backoffs:
    """Endless series of pauses between attempts to list or watch.

    By default kopf gives up within a minute of server errors or missing permissions.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(WATCH_PAUSES, itertools.repeat(WATCH_PAUSES[-1]))


class _NoDiffs(kopf.DiffBaseStorage):
    """Replacement for kopf's store of last handled states. Every state is empty.

    Kopf copies each object several times to compute what changed since its last handling. Event
    handlers never use the result, which took an eighth of the CPU time with a thousand objects.
    """

    def build(self, **_: Any) -> Any:
        """Return an empty state for any object."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return None, because no state is stored."""

    def store(self, **_: Any) -> None:
        """Store no state."""


class _NoProgress(kopf.ProgressStorage):
    """Replacement for kopf's store of handler progress, because event handlers run once."""

    def fetch(self, **_: Any) -> None:
        """Return None, because no progress is stored."""

    def store(self, **_: Any) -> None:
        """Store no progress."""

    def purge(self, **_: Any) -> None:
        """Remove nothing, because no progress is stored."""

    def touch(self, **_: Any) -> None:
        """Leave the object unchanged, although kopf asks for a dummy change."""

    def clear(self, *, essence: Any) -> Any:
        """Return the object unchanged, because it contains no progress."""
        return essence
