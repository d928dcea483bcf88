"""kopf's part: an event becomes a key in the queue, and nothing more.

Event handlers only: no finalizers, daemons, timers or annotations on users' objects
(docs/decisions/0002-kopf-event-only.md).
"""

import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any

import kopf

from ddp_operator.api.base import API_GROUP, API_VERSION_NAME, PLURAL
from ddp_operator.cluster.base import Key, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.queue import WorkQueue
from ddp_wire import contract


def build_registry(cache: Cache, queue: WorkQueue[Key]) -> kopf.OperatorRegistry:
    """Handlers that keep the cache and feed the queue."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return _as_in_a_pod(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(API_GROUP, API_VERSION_NAME, PLURAL, registry=registry)
    async def on_job(event: Any, **_: Any) -> None:
        job = event["object"]
        gone = event["type"] == "DELETED"
        queue.add(cache.drop_job(job) if gone else cache.put_job(job))

    def on_child(kind: str, event: Any) -> None:
        child: Manifest = event["object"]
        gone = event["type"] == "DELETED"
        key = cache.drop_child(kind, child) if gone else cache.put_child(kind, child)
        if key is not None:
            queue.add(key)

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def on_pod(event: Any, **_: Any) -> None:
        on_child("Pod", event)

    @kopf.on.event("", "v1", "services", registry=registry)
    async def on_service(event: Any, **_: Any) -> None:
        on_child("Service", event)

    return registry


def build_settings() -> kopf.OperatorSettings:
    """Kopf's settings: watch only what is ours, write nothing."""
    settings = kopf.OperatorSettings()
    mine = f"{contract.LABEL_MANAGED_BY}={contract.MANAGED_BY}"
    settings.watching.label_selectors["pods"] = mine
    settings.watching.label_selectors["services"] = mine
    settings.posting.enabled = False
    # Else kopf would ask for the right to watch namespaces and CRDs of the whole cluster.
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.error_backoffs = _Backoffs()
    # Never used by event handlers; set so that nothing of kopf's could ever land on an object.
    settings.persistence.finalizer = f"{API_GROUP}/unused"
    return settings


def _as_in_a_pod(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """The pod's service account, at the address that all other requests go to.

    Kopf itself takes the name kubernetes.default.svc, which not every pod can resolve.
    """
    account = kopf.login_with_service_account(**kwargs)
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if account is None or not host or not port:
        return None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return dataclasses.replace(account, server=f"https://{address}")


class _Backoffs:
    """Seconds between two tries to list or to watch, without end and never long.

    By default kopf gives up within a minute of server errors or missing rights, and ends; and it
    sleeps through much of the minute after they are over.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 3.0), itertools.repeat(5.0))
