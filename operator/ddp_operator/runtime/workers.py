"""Workers that take keys from the queue, and the resync that puts all of them in."""

import logging
import time
from collections.abc import Awaitable, Callable

from ddp_operator.cluster.base import ClusterError, ConflictError, Key, Snapshot
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.queue import WorkQueue

_log = logging.getLogger(__name__)


class Heart:
    """When each worker last moved and the API server last answered, for the health endpoints."""

    def __init__(self) -> None:
        self.synced = False
        """Whether the cache has held everything once."""
        self._busy: dict[Key, float] = {}

    def begin(self, key: Key) -> None:
        """A worker takes up a key."""
        self._busy[key] = time.monotonic()

    def end(self, key: Key) -> None:
        """The worker is through with it."""
        self._busy.pop(key, None)

    def longest(self) -> float:
        """Seconds that the slowest worker has been on its key."""
        return max((time.monotonic() - since for since in self._busy.values()), default=0.0)


async def work(queue: WorkQueue[Key], controller: Controller, heart: Heart) -> None:
    """Reconcile one key after the other, for ever."""
    while True:
        key = await queue.get()
        heart.begin(key)
        try:
            await _reconcile_once(queue, controller, key)
        finally:
            heart.end(key)
            queue.done(key)


async def _reconcile_once(queue: WorkQueue[Key], controller: Controller, key: Key) -> None:
    try:
        look_again = await controller.reconcile(key)
    except ClusterError as error:
        delay = queue.retry(key, error.retry_after)
        _log.warning("job %s/%s: again in %.1f s: %s", *key, delay, error)
        if isinstance(error, ConflictError):
            await _refresh(controller, key)
    except Exception:  # noqa: BLE001 (one job's surprise must not end the work on others)
        delay = queue.retry(key)
        _log.exception("job %s/%s: again in %.1f s", *key, delay)
    else:
        queue.forget(key)
        if look_again is not None:
            queue.add_after(key, look_again)


async def _refresh(controller: Controller, key: Key) -> None:
    try:
        await controller.refresh(key)
    except ClusterError as error:
        _log.warning("job %s/%s could not be read: %s", *key, error)


async def resync(
    take: Callable[[], Awaitable[Snapshot]], cache: Cache, queue: WorkQueue[Key]
) -> None:
    """List everything, purge what is gone from the cache, and look at every job.

    Raises:
        ClusterError: The API server refused or did not answer.
    """
    for key in cache.replace(await take()):
        queue.add(key)
