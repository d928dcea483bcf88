"""Watches of agent statuses, so that a loss is found without a wait for a probe or a poll."""

import asyncio
from collections.abc import Callable, Sequence

from ddp_operator.cluster.base import Cluster, Key
from ddp_operator.reconcile.world import PodView
from ddp_wire.contract import AgentPhase, AgentStatus

_FIRST_RETRY_SECONDS = 0.25
_LONGEST_RETRY_SECONDS = 5.0
_FINAL_PHASES = frozenset({AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED})


class AgentWatcher:
    """One open request to the agent of each pod of an active job.

    The statuses are observations like those of the cache: they may be missing or old. Without
    them the operator finds a loss by the readiness of its pod, about a second later.
    """

    def __init__(self, cluster: Cluster, wake: Callable[[Key], None]) -> None:
        """Create a watcher that calls `wake` with a job's key when an agent's status changes."""
        self._cluster, self._wake = cluster, wake
        self._watches: dict[Key, dict[str, asyncio.Task[None]]] = {}
        self._statuses: dict[str, AgentStatus] = {}

    def follow(self, key: Key, pods: Sequence[PodView]) -> None:
        """Watch the agents of exactly these pods of a job. Stop the job's other watches."""
        current = self._watches.setdefault(key, {})
        wanted = {pod.uid: pod for pod in pods if pod.ip and not pod.terminal and not pod.deleting}
        for uid in current.keys() - wanted.keys():
            current.pop(uid).cancel()
            self._statuses.pop(uid, None)
        for uid in wanted.keys() - current.keys():
            current[uid] = asyncio.ensure_future(self._watch(key, wanted[uid]))
        if not current:
            del self._watches[key]

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""
        return {pod.uid: self._statuses[pod.uid] for pod in pods if pod.uid in self._statuses}

    async def close(self) -> None:
        """Stop all watches."""
        tasks = [task for watches in self._watches.values() for task in watches.values()]
        for task in tasks:
            task.cancel()
        self._watches.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, key: Key, pod: PodView) -> None:
        revision, delay = -1, _FIRST_RETRY_SECONDS
        while True:
            status = await self._cluster.watch_agent_status(pod, revision)
            if status is None:
                if self._forget(pod.uid):
                    revision = -1
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_RETRY_SECONDS)
                continue
            delay = _FIRST_RETRY_SECONDS
            if status.revision != revision:
                revision = status.revision
                self._statuses[pod.uid] = status
                self._wake(key)
            else:
                # A current agent waits before it repeats a revision. An agent that cannot wait
                # answers at once, and must not be polled in a busy loop.
                await asyncio.sleep(_FIRST_RETRY_SECONDS)

    def _forget(self, uid: str) -> bool:
        """Drop the status of an agent that does not answer. Return whether one was dropped.

        A final status stays, because it remains true. Any other status may be outdated, because
        the agent may have died.
        """
        status = self._statuses.get(uid)
        if status is None or status.phase in _FINAL_PHASES:
            return False
        del self._statuses[uid]
        return True
