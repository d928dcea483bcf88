"""Watches of agent statuses, so that a loss is found without a wait for a probe."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ddp_operator.cluster.base import Cluster, Key
from ddp_operator.reconcile.world import PodView
from ddp_operator.runtime.fair_budget import FairBudget, Rate
from ddp_operator.runtime.pod_lists import SilenceLists
from ddp_operator.runtime.token_bucket import TokenBucket
from ddp_wire.contract import LONGEST_WAIT_SECONDS, AgentPhase, AgentStatus

PROGRESS_SECONDS = 5.0
"""Shortest time between two readings of a job's progress. New progress changes no revision."""
STATUS_WRITES_PER_SECOND = 20.0
"""Status writes of all jobs together, in the long run, while nothing changes their course."""
_PROGRESS_SHARE = 0.9
"""Part of these writes that progress may use. A job is also written for other reasons, and the jobs
that are due do not spread evenly over time."""
_FIRST_RETRY_SECONDS = 0.25
_LONGEST_RETRY_SECONDS = 5.0
_RETRIES_PER_SECOND = 50.0
"""Requests to agents that have not answered for long, except those of node 0, in the long run. The
pods of many jobs may have no agent that the operator can reach."""
_OPENINGS = Rate(burst=100, per_second=2000.0)
"""First requests to agents. The agents of thousands of pods at once would hold the event loop."""
_ANSWERS = Rate(burst=16, per_second=1.0)
"""Answers of one agent. A hostile one could answer without end."""
_OWN_ANSWERS = 1.25
"""Answers of one agent that wait for no other agent, as a multiple of those of a job that trains.
Such an agent answers once per longest wait of its requests."""
_SHARED_ANSWERS = Rate(burst=64, per_second=20.0)
"""Further answers of all agents together."""
_ANSWER_BYTES = 1 << 14
"""Size of an ordinary answer. A larger one counts as several, because it costs as much to read."""
_WAKES = Rate(burst=16, per_second=0.5)
"""Wakes of one job that wait for no other job. If there are many jobs, the rate of each is its
share of the status writes."""
_SHARED_WAKES = Rate(burst=64, per_second=20.0)
"""Further wakes, of all jobs together."""
_WAKE_SECONDS = 0.2
"""Shortest time between two further wakes of one job. A thousand statuses may change at once."""
_FINAL_PHASES = frozenset({AgentPhase.SUCCEEDED, AgentPhase.FAILED, AgentPhase.PREEMPTED})
_MOST_HELD = 512
"""Most pods of a job whose agents may all hold a request. The agents of a larger job would all
answer within the same second, and hold the event loop."""


class AgentReports(Protocol):
    """Newest known statuses of agents. They are observations: they may be missing or old.

    Any thread may call the methods that only read.
    """

    def follow(self, key: Key, pods: Sequence[PodView]) -> None:
        """Observe the agents of exactly these pods of a job."""

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        """Return the uids of those pods whose agent did not answer the newest request."""

    @property
    def progress_seconds(self) -> float:
        """Seconds between two status writes that change only the progress of one job."""


class _Answers:
    """Budget of the answers of one agent. A watch that begins again keeps the budget of its pod."""

    def __init__(self, now: float) -> None:
        self._limit = TokenBucket(_ANSWERS.burst, _ANSWERS.per_second, now)
        self._own = TokenBucket(_ANSWERS.burst, _ANSWERS.per_second, now)

    def take(self, now: float, cost: float, wait: float, shared: TokenBucket) -> float:
        """Charge an answer to the agent's own share, or to the shared one if that is due sooner.

        Args:
            now: Loop time.
            cost: The answer, as a number of ordinary ones.
            wait: Longest wait of the request in seconds.
            shared: Answers of all agents beyond their own shares.

        Returns:
            Seconds until the agent may be asked again.
        """
        self._own.per_second = _OWN_ANSWERS / wait
        bucket = min(self._own, shared, key=lambda one: one.seconds_until_token(now))
        return max(self._limit.take(now, cost), bucket.take(now, cost))


@dataclass
class _Watch:
    """Watch of one agent. Its task ends while the job is quiet."""

    pod: PodView
    state: tuple[object, ...]
    """State of the pod when the watch began. A change makes an answer likelier."""
    answers: _Answers
    task: asyncio.Task[None] | None = None
    status: AgentStatus | None = None
    silent: bool = False
    answered: bool = False
    """Whether the agent has ever answered."""


class AgentWatcher:
    """Open requests to the agents of active jobs.

    Node 0's agent always has one. The other agents have one as long as the status of any agent of
    the job changes. In a quiet job they notify node 0's agent of an unread status. In a job of more
    than 512 pods the other agents answer at once instead of holding a request, one after the other.

    No reconcile waits for an agent. Without an answer the operator finds a loss by the state of
    the pod alone, seconds later.
    """

    def __init__(
        self,
        cluster: Cluster,
        wake: Callable[[Key], None],
        status_writes_per_second: float = STATUS_WRITES_PER_SECOND,
        refresh_pods: Callable[[Key], Awaitable[None]] | None = None,
    ) -> None:
        """Create a watcher without a job.

        Args:
            cluster: Access to the agents.
            wake: Called with a job's key when an agent's status changes.
            status_writes_per_second: Status writes of all jobs together in the long run.
            refresh_pods: Lists the pods of a job whose agent became silent. None if no event of a
                pod can be lost.
        """
        self._cluster, self._wake_job = cluster, wake
        self._status_writes_per_second = status_writes_per_second
        self._watches: dict[Key, dict[str, _Watch]] = {}
        self._node_0: dict[Key, _Watch] = {}
        self._ended: dict[Key, list[_Watch]] = {}
        """Watches whose tasks ended because their job was quiet."""
        self._wakes: FairBudget[Key] = FairBudget(
            _WAKES, _SHARED_WAKES, shortest_turn=_WAKE_SECONDS
        )
        self._later_wakes: dict[Key, asyncio.TimerHandle] = {}
        """Wakes that are due later. Each covers all changes until then."""
        self._by_uid: dict[str, _Watch] = {}
        self._silent: set[str] = set()
        """Uids of the pods whose agent did not answer the newest request."""
        self._lists = None
        if refresh_pods is not None:
            self._lists = SilenceLists(refresh_pods, wake, self._may_be_gone)
        self._openings = TokenBucket(_OPENINGS.burst, _OPENINGS.per_second, 0.0)
        self._shared_answers = TokenBucket(_SHARED_ANSWERS.burst, _SHARED_ANSWERS.per_second, 0.0)

    def follow(self, key: Key, pods: Sequence[PodView]) -> None:
        """Watch the agents of exactly these pods of a job. Stop the job's other watches."""
        current = self._watches.setdefault(key, {})
        wanted = {pod.uid: pod for pod in pods if pod.ip and not pod.terminal}
        for uid in current.keys() - wanted.keys():
            self._stop(current.pop(uid))
            self._silent.discard(uid)
            if self._by_uid.pop(uid) is self._node_0.get(key):
                del self._node_0[key]
                self._resume_all(key)
        for uid, pod in wanted.items():
            self._ensure(key, current, uid, pod)
        if not current:
            del self._watches[key]
            self._node_0.pop(key, None)
            self._ended.pop(key, None)
            self._stop_wakes(key)

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""
        found = self._of(pods)
        return {uid: status for uid, watch in found if (status := watch.status) is not None}

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        """Return the uids of those pods of a job whose agent did not answer the newest request.

        Without any answer from the agents of a job, the operator probably cannot reach them at all,
        and their silence tells nothing.
        """
        found = list(self._of(pods))
        if not any(watch.answered for _, watch in found):
            return frozenset()
        return frozenset(uid for uid, watch in found if watch.silent)

    def count(self, silent: bool) -> int:
        """Return the number of followed agents that are silent, or that are not."""
        return sum(watch.silent == silent for watch in self._by_uid.values())

    @property
    def progress_seconds(self) -> float:
        """Seconds between two status writes that change only the progress of one job.

        All followed jobs share the budget of status writes evenly.
        """
        writes_per_second = _PROGRESS_SHARE * self._status_writes_per_second
        return max(PROGRESS_SECONDS, len(self._watches) / writes_per_second)

    async def close(self) -> None:
        """Stop all watches."""
        tasks = [watch.task for watch in self._by_uid.values() if watch.task is not None]
        for task in tasks:
            task.cancel()
        for key in list(self._watches):
            self._stop_wakes(key)
        self._watches.clear()
        self._node_0.clear()
        self._ended.clear()
        self._silent.clear()
        self._by_uid.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lists is not None:
            await self._lists.close()

    def _of(self, pods: Sequence[PodView]) -> Iterable[tuple[str, _Watch]]:
        """Return the watches of these pods, by uid. Any thread may call it."""
        found = ((pod.uid, self._by_uid.get(pod.uid)) for pod in pods)
        return ((uid, watch) for uid, watch in found if watch is not None)

    def _ensure(self, key: Key, current: dict[str, _Watch], uid: str, pod: PodView) -> None:
        """Start a watch, or start it again if the pod has changed so that a new try is due."""
        state = (pod.ip, pod.phase, pod.ready, pod.deleting)
        known = current.get(uid)
        if known is not None and known.state == state:
            return
        if known is not None:
            # A pod that is being deleted may have lost its node: then the open request hangs.
            if known.status is not None and not pod.deleting:
                known.pod, known.state = pod, state
                self._resume(key, known)
                return
            self._stop(known)
        answers = known.answers if known else _Answers(asyncio.get_running_loop().time())
        watch = _Watch(pod, state, answers)
        if known is not None:
            watch.status, watch.answered = known.status, known.answered
        current[uid] = self._by_uid[uid] = watch
        self._silent.discard(uid)
        if pod.index == 0:
            self._node_0[key] = watch
        watch.task = asyncio.ensure_future(self._run(key, watch))

    @staticmethod
    def _stop(watch: _Watch) -> None:
        if watch.task is not None:
            watch.task.cancel()
            watch.task = None

    def _resume(self, key: Key, watch: _Watch) -> None:
        """Ask an agent again if its request ended because the job was quiet."""
        if watch.task is not None and watch.task.done():
            watch.task = asyncio.ensure_future(self._run(key, watch))

    def _resume_all(self, key: Key) -> None:
        """Ask all agents of a job again, because the job is not quiet any more."""
        for watch in self._ended.pop(key, ()):
            self._resume(key, watch)

    def _is_spoken_for(self, key: Key, pod: PodView) -> bool:
        """Return whether node 0's agent shows that this pod's agent has an unread status."""
        first = self._node_0.get(key)
        if first is None or pod.index == 0 or first.silent or first.status is None:
            return False
        return first.status.unread_notices is not None

    def _is_large(self, key: Key) -> bool:
        return len(self._watches.get(key, ())) > _MOST_HELD

    def _concerns_all(self, key: Key, watch: _Watch, known: AgentStatus | None) -> bool:
        """Return whether all agents of a large job must be asked, because of a watch's status."""
        status = watch.status
        if watch is not self._node_0.get(key) or status is None:
            return False
        if known is None or status.phase in _FINAL_PHASES:
            return True
        return known.unread_notices != status.unread_notices

    async def _run(self, key: Key, watch: _Watch) -> None:
        """Ask one agent again and again, until its job is quiet."""
        pod, revision, delay = watch.pod, -1, _FIRST_RETRY_SECONDS
        loop = asyncio.get_running_loop()
        turn = self._openings.take(loop.time())
        if turn > 0.0:
            await asyncio.sleep(turn)
        while True:
            wait = self.progress_seconds if pod.index == 0 else LONGEST_WAIT_SECONDS
            wait = min(wait, LONGEST_WAIT_SECONDS)
            answer = await self._cluster.watch_agent_status(pod, revision, wait)
            cost = max(0.0 if answer.status is None else 1.0, answer.size / _ANSWER_BYTES)
            pause = watch.answers.take(loop.time(), cost, wait, self._shared_answers)
            if answer.status is None:
                revision = -1
                self._record_silence(key, watch)
                await asyncio.sleep(max(delay, pause))
                delay = min(2 * delay, self._longest_retry(pod))
                continue
            delay = _FIRST_RETRY_SECONDS
            self._silent.discard(pod.uid)
            repeated = answer.status.revision == revision
            revision, watch.silent, watch.answered = answer.status.revision, False, True
            self._record(key, watch, answer.status)
            if (repeated or self._is_large(key)) and self._is_spoken_for(key, pod):
                self._ended.setdefault(key, []).append(watch)
                return
            # A current agent waits before it repeats a revision. One that cannot wait answers at
            # once, and must not be asked in a busy loop.
            await asyncio.sleep(max(pause, _FIRST_RETRY_SECONDS if repeated else 0.0))

    def _longest_retry(self, pod: PodView) -> float:
        """Return the longest pause between two requests to an agent that does not answer.

        A change of its pod, such as its readiness, causes a request at once.
        """
        if pod.index == 0:
            return _LONGEST_RETRY_SECONDS
        return max(_LONGEST_RETRY_SECONDS, len(self._silent) / _RETRIES_PER_SECOND)

    def _record(self, key: Key, watch: _Watch, status: AgentStatus) -> None:
        known = watch.status
        if status == known:
            return
        watch.status = status
        self._wake(key)
        changed = known is None or known.revision != status.revision
        if changed and (not self._is_large(key) or self._concerns_all(key, watch, known)):
            self._resume_all(key)

    def _wake(self, key: Key) -> None:
        """Wake a job now, or later together with the changes until then if it had many."""
        if key in self._later_wakes:
            return
        loop = asyncio.get_running_loop()
        fair_share = self._status_writes_per_second / max(1, len(self._watches))
        self._wakes.own_per_second = min(_WAKES.per_second, fair_share)
        seconds = self._wakes.wait(key, loop.time())
        if seconds > 0.0:
            self._later_wakes[key] = loop.call_later(seconds, self._wake_now, key)
        else:
            self._wake_now(key)

    def _wake_now(self, key: Key) -> None:
        self._later_wakes.pop(key, None)
        self._wakes.spend(key, asyncio.get_running_loop().time())
        self._wake_job(key)

    def _stop_wakes(self, key: Key) -> None:
        timer = self._later_wakes.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._wakes.forget(key)

    def _record_silence(self, key: Key, watch: _Watch) -> None:
        """Drop the status of an agent that does not answer, unless it is final and remains true."""
        lost = watch.status is not None and watch.status.phase not in _FINAL_PHASES
        if lost:
            watch.status = None
        if lost or (watch.pod.deleting and not watch.silent):
            self._wake(key)
        begins, watch.silent = not watch.silent, True
        self._silent.add(watch.pod.uid)
        if begins and self._lists is not None and self._may_be_gone(watch.pod.uid):
            self._lists.add(key, watch.pod.uid)
        if lost and (not self._is_large(key) or watch is self._node_0.get(key)):
            self._resume_all(key)

    def _may_be_gone(self, uid: str) -> bool:
        """Return whether the silence of an agent is the only sign that its pod may be gone.

        The agent of a pod that starts does not answer yet, and a deletion was observed already.
        """
        watch = self._by_uid.get(uid)
        if watch is None or not watch.silent or watch.pod.deleting:
            return False
        return watch.pod.ready or watch.answered
