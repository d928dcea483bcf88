"""List the pods of one job, and remove pods that no longer exist from the cache.

A broken watch may be silent for over a minute before it restarts. Until then only the silence of an
agent shows that its pod is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from ddp_operator.api.job import DDPJob, InvalidJobError, UnreadableStatusError, parse_job
from ddp_operator.builders import names
from ddp_operator.cluster.base import Cluster, ClusterError, Key, Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.list_turns import ListTurns

_log = logging.getLogger(__name__)

_SHORTEST_TIMER_SECONDS = 0.01
"""Minimum seconds of a timer. A shorter timer may end before the loop's clock changes."""


class PodLists:
    """Reader of lists of one job's pods."""

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        """Create a reader that replaces the pods of a job in `cache`."""
        self._cluster, self._cache = cluster, cache

    async def read(self, job: DDPJob) -> Sequence[Manifest]:
        """Return the pods of a job, and replace the job's pods in the cache.

        Raises:
            ClusterError: The API server refused or did not answer.
        """
        key, labels = job.key, names.pod_selector(job)
        with self._cache.pending_request() as request:
            listing = await self._cluster.list_pods(key[0], labels, job.pods)
            request.replace_pods(key, labels, listing)
        return listing.items

    async def refresh(self, key: Key) -> None:
        """Replace the pods of a job in the cache, if the cache contains the job.

        Raises:
            ClusterError: The API server refused or did not answer.
        """
        raw = self._cache.job(key)
        if raw is None:
            return
        try:
            job = parse_job(raw)
        except (InvalidJobError, UnreadableStatusError):
            return
        await self.read(job)


class SilenceLists:
    """Scheduler of pod lists for jobs whose agents became silent, one list per silence."""

    def __init__(
        self,
        refresh: Callable[[Key], Awaitable[None]],
        wake: Callable[[Key], None],
        is_silent: Callable[[str], bool],
    ) -> None:
        """Create a scheduler without a job.

        Args:
            refresh: Function that lists the pods of a job. After a ClusterError it is called again
                later.
            wake: Function that is called with the key of a job after its pods were listed.
            is_silent: Function that returns whether the agent of the pod with a uid is still
                silent.
        """
        self._refresh, self._wake, self._is_silent = refresh, wake, is_silent
        self._turns = ListTurns()
        self._silent: dict[Key, set[str]] = {}
        """Uids of the pods whose silence caused no list yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, key: Key, uid: str) -> None:
        """Queue a list of the pods of a job, because one of its agents became silent."""
        self._silent.setdefault(key, set()).add(uid)
        self._turns.add(key, asyncio.get_running_loop().time())
        self._set_timer()

    async def close(self) -> None:
        """Cancel all pending lists."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        seconds = self._turns.seconds_until_next(loop.time())
        self._timer = None
        if seconds is not None:
            self._timer = loop.call_later(max(seconds, _SHORTEST_TIMER_SECONDS), self._run_due)

    def _run_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while (key := self._turns.next(now)) is not None:
            silent = {uid for uid in self._silent.pop(key) if self._is_silent(uid)}
            if silent:
                self._turns.record_list(key, now)
                task = asyncio.ensure_future(self._list(key, silent))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._set_timer()

    async def _list(self, key: Key, silent: set[str]) -> None:
        try:
            await self._refresh(key)
        except ClusterError as error:
            _log.warning("cannot list the pods of %s whose agents do not answer: %s", key, error)
            for uid in silent:
                self.add(key, uid)
        else:
            self._wake(key)
