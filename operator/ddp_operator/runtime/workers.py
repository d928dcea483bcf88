"""Workers that process keys from the queue, and the resync that adds all keys.

A worker takes a key, reconciles the job, and adds the key again when the job is due. After an error
it adds the key with a backoff. Events only add keys, so all decisions depend on the cache and not
on the event. The resync lists all objects and adds all keys, because a watch can lose an event.

Half of the workers take only urgent jobs, for example with a failed rank. So a recovery does not
wait for new jobs whose pods are being created.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, NoReturn

from ddp_operator.builders.kinds import GROUP_PLURALS
from ddp_operator.cluster.base import (
    ClusterError,
    ClusterSnapshot,
    ConflictError,
    Key,
    NotLeadingError,
    Request,
)
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.logs import log_fields
from ddp_operator.runtime.memory import release_memory
from ddp_operator.runtime.queue import WorkQueue
from ddp_wire import contract

_log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 2.0
_RESYNC_RETRY_SECONDS = 30.0

TakeSnapshot = Callable[[], Awaitable[ClusterSnapshot]]


class WorkerActivity:
    """Activity of the workers and outcomes of API requests, for the health endpoints."""

    def __init__(self) -> None:
        self.synced = False
        """Whether the cache has been filled once."""
        self.problem = ""
        """Error of the last failed attempt to fill the cache, or empty."""
        self.unserved_namespaces: dict[str, str] = {}
        """Error of each namespace that refuses the operator, by its name."""
        self.refused_watches: dict[tuple[str, str | None], str] = {}
        """Sentence about each watch that is refused, by kind and namespace."""
        self.resync_wanted = asyncio.Event()
        """Event that is set when a job of an unserved namespace is known: the namespace may be
        served again."""
        self.missing_kind = asyncio.Event()
        """Event that is set when the API server did not serve the group objects of a gang
        scheduler."""
        self._busy: dict[Key, float] = {}
        self._failures: tuple[float, float] | None = None
        """Times of the first and the last failed request since the last served one."""

    def is_listed(self, namespace: str) -> bool:
        """Return whether the last snapshot had a namespace. If not, request an early resync."""
        listed = namespace not in self.unserved_namespaces
        if not listed:
            self.resync_wanted.set()
        return listed

    def begin(self, key: Key) -> None:
        """Record that a worker starts to process a key."""
        self._busy[key] = time.monotonic()

    def end(self, key: Key) -> None:
        """Record that the worker has processed the key."""
        self._busy.pop(key, None)

    def longest_busy_seconds(self) -> float:
        """Return the longest time for which a worker has been processing its current key."""
        return max((time.monotonic() - since for since in self._busy.values()), default=0.0)

    def record_request(self, request: Request) -> None:
        """Record whether the API server answered a request."""
        now = time.monotonic()
        first, _ = self._failures or (now, now)
        self._failures = None if request.served else (first, now)
        is_group = request.resource in GROUP_PLURALS and request.verb != "DELETE"
        if is_group and request.status == HTTPStatus.NOT_FOUND:
            self.missing_kind.set()

    def unserved_seconds(self) -> float:
        """Return the seconds for which every request has failed.

        The time ends at the last failure, because an idle operator sends no requests for minutes,
        and nothing is known about that time.
        """
        first, last = self._failures or (0.0, 0.0)
        return last - first


def all_workers(
    number: int,
    queue: WorkQueue[Key],
    controller: Controller,
    activity: WorkerActivity,
    on_reconcile: Callable[[str, float], None],
) -> list[Coroutine[Any, Any, None]]:
    """Return the given number of workers. Half of them, rounded down, take only urgent keys.

    With a thousand new jobs, all other workers create pods for as long as the API server needs. A
    running or recovering job does not wait for them. More workers would not create the pods faster,
    but would slow all requests.
    """
    return [
        work(queue, controller, activity, on_reconcile, urgent=index < number // 2)
        for index in range(number)
    ]


async def work(
    queue: WorkQueue[Key],
    controller: Controller,
    activity: WorkerActivity,
    on_reconcile: Callable[[str, float], None] = lambda *_: None,
    *,
    urgent: bool = False,
) -> NoReturn:
    """Reconcile one key after another, forever.

    Args:
        queue: Keys of jobs.
        controller: Controller of the jobs.
        activity: Activity of this process.
        on_reconcile: Function that is called after each reconcile with its result and its seconds.
        urgent: Whether to take only urgent keys.

    Raises:
        NotLeadingError: This process must no longer write.
    """
    while True:
        key = await queue.get(urgent=urgent)
        activity.begin(key)
        try:
            with log_fields(job="/".join(key)):
                started = time.monotonic()
                result = await _reconcile_once(queue, controller, key)
                on_reconcile(result, time.monotonic() - started)
        finally:
            activity.end(key)
            queue.done(key)


async def _reconcile_once(queue: WorkQueue[Key], controller: Controller, key: Key) -> str:
    """Reconcile a key, and add it again when it is due. Return the result for the metrics."""
    try:
        requeue_seconds = await controller.reconcile(key)
    except NotLeadingError:
        raise
    except ClusterError as error:
        delay = queue.retry(key, error.retry_after)
        _log.warning("reconcile failed, next try in %.1f s: %s", delay, error)
        if isinstance(error, ConflictError):
            await _refresh(controller, key)
            return "conflict"
        return "refused"
    except Exception:  # noqa: BLE001 (an unexpected error of one job must not stop the others)
        delay = queue.retry(key)
        _log.exception("reconcile failed, next try in %.1f s", delay)
        return "error"
    else:
        queue.forget(key)
        if controller.is_creating(key):
            queue.add_again(key)
            return "success"
        queue.pause(key, controller.pause_seconds(key))
        if requeue_seconds is not None:
            queue.add_after(key, requeue_seconds)
        return "success"


async def _refresh(controller: Controller, key: Key) -> None:
    try:
        await controller.refresh(key)
    except ClusterError as error:
        _log.warning("cannot read the job: %s", error)


async def resync(take_snapshot: TakeSnapshot, cache: Cache, queue: WorkQueue[Key]) -> None:
    """List all objects, remove deleted objects from the cache, and queue every job.

    Jobs with missing pods come first. Otherwise a restarted operator would notice a lost pod only
    after it has processed all other jobs.

    Raises:
        ClusterError: The API server refused or did not answer.
    """
    with cache.pending_request() as relist:
        for key in relist.replace(await take_snapshot()):
            queue.add(key, urgent=_lacks_pods(cache, key))


def _lacks_pods(cache: Cache, key: Key) -> bool:
    """Return whether a job has fewer pods than its status states."""
    status = (cache.job(key) or {}).get("status") or {}
    counted = status.get("replicas", 0)
    ended = "completionTime" in status
    return not ended and isinstance(counted, int) and _count_workers(cache, key) < counted


def _count_workers(cache: Cache, key: Key) -> int:
    labels = (pod["metadata"].get("labels") or {} for pod in cache.children("Pod", key))
    return sum(contract.LABEL_INIT_STEP not in one for one in labels)


async def first_sync(
    take_snapshot: TakeSnapshot, cache: Cache, queue: WorkQueue[Key], activity: WorkerActivity
) -> None:
    """Fill the cache before any decision is made. Retry until it succeeds."""
    while True:
        try:
            await resync(take_snapshot, cache, queue)
        except ClusterError as error:
            if activity.problem != str(error):
                _log.warning("not ready, jobs and pods cannot be listed: %s", error)
            activity.problem = str(error)
            await asyncio.sleep(max(_FIRST_RETRY_SECONDS, error.retry_after or 0.0))
        else:
            activity.synced = True
            return


async def resync_periodically(
    take_snapshot: TakeSnapshot,
    cache: Cache,
    queue: WorkQueue[Key],
    every: float,
    wanted: asyncio.Event | None = None,
) -> NoReturn:
    """Resync every `every` seconds, and sooner after a failure or when `wanted` is set.

    Return memory to the system after each resync, and again before the next one, because workers
    may still be deleting many jobs when a resync ends.
    """
    delay, wanted = every, wanted or asyncio.Event()
    while True:
        half = delay * random.uniform(0.45, 0.55)  # noqa: S311 (jitter)
        await _pause(half, wanted)
        release_memory()
        await _pause(half, wanted)
        wanted.clear()
        try:
            await resync(take_snapshot, cache, queue)
        except ClusterError as error:
            delay = max(min(every, _RESYNC_RETRY_SECONDS), error.retry_after or 0.0)
            _log.warning("resync failed, next try in %.0f s: %s", delay, error)
        else:
            delay = every
            release_memory()


async def _pause(seconds: float, wanted: asyncio.Event) -> None:
    """Wait. Shorten the wait to half the retry's time if a resync is wanted."""
    shortest = min(seconds, _RESYNC_RETRY_SECONDS / 2)
    await asyncio.sleep(shortest)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wanted.wait(), seconds - shortest)
