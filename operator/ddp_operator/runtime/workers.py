"""Workers that take keys from the queue, and the resync that puts all of them in."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ddp_operator.cluster.base import ClusterError, ConflictError, Key, NotLeadingError, Snapshot
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.logs import about
from ddp_operator.runtime.queue import WorkQueue

_log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 2.0
_RESYNC_RETRY_SECONDS = 30.0

Take = Callable[[], Awaitable[Snapshot]]


class Heart:
    """When each worker last moved and the API server last answered, for the health endpoints."""

    def __init__(self) -> None:
        self.synced = False
        """Whether the cache has held everything once."""
        self.problem = ""
        """Why it has not, as far as known."""
        self._busy: dict[Key, float] = {}
        self._failures: tuple[float, float] | None = None
        """The first and the last failed request since one that was served."""

    def begin(self, key: Key) -> None:
        """A worker takes up a key."""
        self._busy[key] = time.monotonic()

    def end(self, key: Key) -> None:
        """The worker is through with it."""
        self._busy.pop(key, None)

    def longest(self) -> float:
        """Seconds that the slowest worker has been on its key."""
        return max((time.monotonic() - since for since in self._busy.values()), default=0.0)

    def heard(self, served: bool) -> None:
        """A request to the API server has been served, or has failed."""
        now = time.monotonic()
        first, _ = self._failures or (now, now)
        self._failures = None if served else (first, now)

    def unserved(self) -> float:
        """Seconds over which requests were made and every one failed.

        Up to the last failure, not up to now: an operator with nothing to do makes no requests for
        minutes, and one that failed before that says nothing about the time since.
        """
        first, last = self._failures or (0.0, 0.0)
        return last - first


async def work(queue: WorkQueue[Key], controller: Controller, heart: Heart) -> NoReturn:
    """Reconcile one key after the other, for ever.

    Raises:
        NotLeadingError: This process may not write any more.
    """
    while True:
        key = await queue.get()
        heart.begin(key)
        try:
            with about(job="/".join(key)):
                await _reconcile_once(queue, controller, key)
        finally:
            heart.end(key)
            queue.done(key)


async def _reconcile_once(queue: WorkQueue[Key], controller: Controller, key: Key) -> None:
    try:
        look_again = await controller.reconcile(key)
    except NotLeadingError:
        raise
    except ClusterError as error:
        delay = queue.retry(key, error.retry_after)
        _log.warning("again in %.1f s: %s", delay, error)
        if isinstance(error, ConflictError):
            await _refresh(controller, key)
    except Exception:  # noqa: BLE001 (one job's surprise must not end the work on others)
        delay = queue.retry(key)
        _log.exception("again in %.1f s", delay)
    else:
        queue.forget(key)
        if look_again is not None:
            queue.add_after(key, look_again)


async def _refresh(controller: Controller, key: Key) -> None:
    try:
        await controller.refresh(key)
    except ClusterError as error:
        _log.warning("the job could not be read: %s", error)


async def resync(take: Take, cache: Cache, queue: WorkQueue[Key]) -> None:
    """List everything, purge what is gone from the cache, and look at every job.

    Raises:
        ClusterError: The API server refused or did not answer.
    """
    for key in cache.replace(await take()):
        queue.add(key)


async def first_sync(take: Take, cache: Cache, queue: WorkQueue[Key], heart: Heart) -> None:
    """Hold everything once before any decision is made."""
    while True:
        try:
            await resync(take, cache, queue)
        except ClusterError as error:
            if heart.problem != str(error):
                _log.warning("not ready, jobs and pods cannot be listed: %s", error)
            heart.problem = str(error)
            await asyncio.sleep(max(_FIRST_RETRY_SECONDS, error.retry_after or 0.0))
        else:
            heart.synced = True
            return


async def resync_for_ever(
    take: Take, cache: Cache, queue: WorkQueue[Key], every: float
) -> NoReturn:
    """Resync from time to time; sooner after one that failed."""
    delay = every
    while True:
        await asyncio.sleep(delay * random.uniform(0.9, 1.1))  # noqa: S311 (jitter)
        try:
            await resync(take, cache, queue)
        except ClusterError as error:
            delay = max(min(every, _RESYNC_RETRY_SECONDS), error.retry_after or 0.0)
            _log.warning("resync failed, again in %.0f s: %s", delay, error)
        else:
            delay = every
