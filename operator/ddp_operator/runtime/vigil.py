"""Hears at once what agents have to tell, so that nothing waits for a probe or a poll."""

import asyncio
from collections.abc import Callable, Sequence

from ddp_operator.cluster.base import Cluster, Key
from ddp_operator.reconcile.world import PodView
from ddp_wire.contract import AgentPhase, AgentStatus

_FIRST_RETRY_SECONDS = 0.25
_LONGEST_RETRY_SECONDS = 5.0
_ENDS = frozenset({AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED})


class Vigil:
    """Keeps one request open to the agent of each pod of an active job.

    Its words are observations like those of the cache: they may be missing and they may lag.
    Without them a loss is noticed by the readiness of its pod, a second later.
    """

    def __init__(self, cluster: Cluster, wake: Callable[[Key], None]) -> None:
        """`wake` is called with a job's key when one of its agents has told something new."""
        self._cluster, self._wake = cluster, wake
        self._listeners: dict[Key, dict[str, asyncio.Task[None]]] = {}
        self._words: dict[str, AgentStatus] = {}

    def attend(self, key: Key, pods: Sequence[PodView]) -> None:
        """Listen to the agents of these pods of a job, and to no other pod of it."""
        known = self._listeners.setdefault(key, {})
        wanted = {pod.uid: pod for pod in pods if pod.ip and not pod.terminal and not pod.deleting}
        for uid in known.keys() - wanted.keys():
            known.pop(uid).cancel()
            self._words.pop(uid, None)
        for uid in wanted.keys() - known.keys():
            known[uid] = asyncio.ensure_future(self._listen(key, wanted[uid]))
        if not known:
            del self._listeners[key]

    def words(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """The newest words of agents, by the uids of their pods."""
        return {pod.uid: self._words[pod.uid] for pod in pods if pod.uid in self._words}

    async def close(self) -> None:
        """Stop listening."""
        tasks = [task for found in self._listeners.values() for task in found.values()]
        for task in tasks:
            task.cancel()
        self._listeners.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, key: Key, pod: PodView) -> None:
        revision, delay = -1, _FIRST_RETRY_SECONDS
        while True:
            word = await self._cluster.await_agent(pod, revision)
            if word is None:
                if self._forget(pod.uid):
                    revision = -1
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_RETRY_SECONDS)
                continue
            delay = _FIRST_RETRY_SECONDS
            if word.revision != revision:
                revision = word.revision
                self._words[pod.uid] = word
                self._wake(key)
            else:
                # It has waited already; an agent that does not know how to is not asked in a loop.
                await asyncio.sleep(_FIRST_RETRY_SECONDS)

    def _forget(self, uid: str) -> bool:
        """Drop the word of an agent that is silent now; whether there was one to be dropped.

        What it said of an end stays true. That it trains does not: it may have died.
        """
        word = self._words.get(uid)
        if word is None or word.phase in _ENDS:
            return False
        del self._words[uid]
        return True
