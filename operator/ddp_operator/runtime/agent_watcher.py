"""Watch the agents' statuses, so that the operator detects faults without probe delays.

A watch is one open request to one agent, and the agent answers when its status has a new revision
(a long poll). The watcher stores each answer, triggers a reconcile of the job, and sends the next
request. No reconcile waits for an agent. If an agent does not answer, the watcher drops its status
unless that is final. Then only the state of the pod shows a fault, seconds later.

The agent of the first member always has an open request. All other agents have one as long as the
status of any agent of the job changes. Once the job is quiet these requests end, and an agent with
an unread status notifies the first member's agent. In a job of more than 512 pods these agents do
not hold a request: they answer at once, one after another.

Agents are not trusted, and there may be thousands of them. So budgets limit first requests,
answers, retries and triggered reconciles.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from ddp_operator import limits
from ddp_operator.cluster.base import Cluster, Key
from ddp_operator.reconcile.pod_view import PodView
from ddp_operator.runtime.agent_watches import FINAL_PHASES, AnswerBudget, JobWatches, Watch
from ddp_operator.runtime.fair_budget import FairBudget
from ddp_operator.runtime.pod_lists import SilenceLists
from ddp_operator.runtime.token_bucket import TokenBucket
from ddp_wire.contract import LONGEST_WAIT_SECONDS
from ddp_wire.messages import AgentStatus


class AgentWatcher:
    """Watcher of the agents of active jobs through open requests."""

    def __init__(
        self,
        cluster: Cluster,
        wake: Callable[[Key], None],
        status_writes_per_second: float = limits.STATUS_WRITES_PER_SECOND,
        refresh_pods: Callable[[Key], Awaitable[None]] | None = None,
    ) -> None:
        """Create a watcher without a job.

        Args:
            cluster: Access to the agents.
            wake: Function that is called with a job's key when an agent's status changes.
            status_writes_per_second: Status writes of all jobs together, averaged over time.
            refresh_pods: Function that lists the pods of a job whose agent became silent. None if
                watches lose no event.
        """
        self._cluster, self._wake_job = cluster, wake
        self._status_writes_per_second = status_writes_per_second
        self._jobs: dict[Key, JobWatches] = {}
        self._by_uid: dict[str, Watch] = {}
        self._silent: set[str] = set()
        """Uids of the pods whose agent did not answer the newest request."""
        self._wakes = FairBudget(
            limits.WAKES, limits.SHARED_WAKES, shortest_turn=limits.WAKE_SECONDS
        )
        self._openings = TokenBucket(limits.OPENINGS, 0.0)
        self._answers = FairBudget(limits.AGENT_ANSWERS, limits.SHARED_ANSWERS, shortest_turn=0.0)
        self._lists = None
        if refresh_pods is not None:
            self._lists = SilenceLists(refresh_pods, wake, self._may_be_gone)

    def follow(self, key: Key, pods: Sequence[PodView], first: int = 0) -> None:
        """Watch the agents of these pods of a job. Stop all other watches of the job.

        All other agents send their notices to the agent of node `first`, the attempt's first
        member.
        """
        wanted = {pod.uid: pod for pod in pods if pod.ip and not pod.terminal}
        job = self._jobs.get(key)
        if job is None:
            if not wanted:
                return
            job = self._jobs[key] = JobWatches(key, self._wakes.share())
        for uid in job.watches.keys() - wanted.keys():
            self._unfollow(job, uid)
        self._set_first(job, first)
        for uid, pod in wanted.items():
            self._ensure(job, uid, pod)
        if not job.watches:
            del self._jobs[key]
            job.stop_wake()

    def statuses(self, pods: Sequence[PodView]) -> dict[str, AgentStatus]:
        """Return the newest known agent statuses of these pods, by pod uid."""
        found = self._of(pods)
        return {uid: status for uid, watch in found if (status := watch.status) is not None}

    def silent(self, pods: Sequence[PodView]) -> frozenset[str]:
        """Return the uids of those pods of a job whose agent did not answer the newest request.

        If no agent of a job answers, the operator probably cannot reach them, so the result is
        empty.
        """
        found = list(self._of(pods))
        if not any(watch.answered for _, watch in found):
            return frozenset()
        return frozenset(uid for uid, watch in found if watch.silent)

    def count(self, silent: bool) -> int:
        """Return the number of followed agents that are silent, or the number that are not."""
        return sum(watch.silent == silent for watch in self._by_uid.values())

    @property
    def progress_seconds(self) -> float:
        """Minimum seconds between two status writes of one job that change only its progress.

        All followed jobs share the budget of status writes evenly.
        """
        writes_per_second = limits.PROGRESS_SHARE * self._status_writes_per_second
        return max(limits.PROGRESS_SECONDS, len(self._jobs) / writes_per_second)

    async def close(self) -> None:
        """Stop all watches."""
        tasks = [watch.task for watch in self._by_uid.values() if watch.task is not None]
        for task in tasks:
            task.cancel()
        for job in self._jobs.values():
            job.stop_wake()
        self._jobs.clear()
        self._silent.clear()
        self._by_uid.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lists is not None:
            await self._lists.close()

    def _of(self, pods: Sequence[PodView]) -> Iterable[tuple[str, Watch]]:
        """Return the watches of these pods, by uid. Any thread may call this method."""
        found = ((pod.uid, self._by_uid.get(pod.uid)) for pod in pods)
        return ((uid, watch) for uid, watch in found if watch is not None)

    def _set_first(self, job: JobWatches, first: int) -> None:
        """Keep a permanent request open to the agent of the first member."""
        if job.first == first:
            return
        job.first = first
        job.first_watch = next((w for w in job.watches.values() if w.pod.index == first), None)
        self._resume_all(job)

    def _unfollow(self, job: JobWatches, uid: str) -> None:
        watch = job.watches.pop(uid)
        watch.stop()
        del self._by_uid[uid]
        self._silent.discard(uid)
        if watch is job.first_watch:
            job.first_watch = None
            self._resume_all(job)

    def _ensure(self, job: JobWatches, uid: str, pod: PodView) -> None:
        """Start a watch. Restart it if a change of the pod makes a new request worthwhile."""
        state = (pod.ip, pod.agent_port, pod.phase, pod.ready, pod.deleting)
        known = job.watches.get(uid)
        if known is not None and known.state == state:
            return
        if known is not None:
            # A pod that is being deleted may have lost its node: then the open request hangs.
            if known.status is not None and not pod.deleting:
                known.pod, known.state = pod, state
                self._resume(job, known)
                return
            known.stop()
        if known is None:
            now = asyncio.get_running_loop().time()
            watch = Watch(pod, state, AnswerBudget(self._answers.share(), now))
        else:
            watch = Watch(pod, state, known.answers)
            watch.status, watch.answered = known.status, known.answered
        job.watches[uid] = self._by_uid[uid] = watch
        self._silent.discard(uid)
        if pod.index == job.first:
            job.first_watch = watch
        watch.task = asyncio.ensure_future(self._run(job, watch))

    def _resume(self, job: JobWatches, watch: Watch) -> None:
        """Send a new request to an agent whose request ended because the job was quiet."""
        if watch.task is not None and watch.task.done():
            watch.task = asyncio.ensure_future(self._run(job, watch))

    def _resume_all(self, job: JobWatches) -> None:
        """Send new requests to all agents of a job, because the job is no longer quiet."""
        ended, job.ended = job.ended, []
        for watch in ended:
            self._resume(job, watch)

    async def _run(self, job: JobWatches, watch: Watch) -> None:
        """Send requests to one agent, one after another, until its job is quiet."""
        pod, revision, delay = watch.pod, -1, limits.AGENT_RETRIES.first
        loop = asyncio.get_running_loop()
        turn = self._openings.take(loop.time())
        if turn > 0.0:
            await asyncio.sleep(turn)
        while True:
            wait = self.progress_seconds if pod.index == job.first else LONGEST_WAIT_SECONDS
            wait = min(wait, LONGEST_WAIT_SECONDS)
            answer = await self._cluster.watch_agent_status(pod, revision, wait)
            cost = max(0.0 if answer.status is None else 1.0, answer.size / limits.ANSWER_BYTES)
            pause = watch.answers.take(loop.time(), cost, wait)
            if answer.status is None:
                revision = -1
                self._record_silence(job, watch)
                await asyncio.sleep(max(delay, pause))
                delay = min(2 * delay, self._longest_retry(job, pod))
                continue
            delay = limits.AGENT_RETRIES.first
            self._silent.discard(pod.uid)
            repeated = answer.status.revision == revision
            revision, watch.silent, watch.answered = answer.status.revision, False, True
            self._record(job, watch, answer.status)
            if (repeated or job.is_large) and job.is_covered_by_first(pod):
                job.ended.append(watch)
                return
            # A current agent waits before it repeats a revision. One that cannot wait answers at
            # once, and must not be asked in a busy loop.
            await asyncio.sleep(max(pause, limits.AGENT_RETRIES.first if repeated else 0.0))

    def _longest_retry(self, job: JobWatches, pod: PodView) -> float:
        """Return the longest pause between two requests to an agent that does not answer.

        A change of the pod, for example of its readiness, triggers a request at once.
        """
        if pod.index == job.first:
            return limits.AGENT_RETRIES.longest
        return max(limits.AGENT_RETRIES.longest, len(self._silent) / limits.RETRIES_PER_SECOND)

    def _record(self, job: JobWatches, watch: Watch, status: AgentStatus) -> None:
        known = watch.status
        if status == known:
            return
        watch.status = status
        self._wake(job)
        if job.concerns_all(watch, known):
            self._resume_all(job)

    def _record_silence(self, job: JobWatches, watch: Watch) -> None:
        """Drop the status of an agent that does not answer, unless the status is final."""
        lost = watch.status is not None and watch.status.phase not in FINAL_PHASES
        if lost:
            watch.status = None
        if lost or (watch.pod.deleting and not watch.silent):
            self._wake(job)
        begins, watch.silent = not watch.silent, True
        self._silent.add(watch.pod.uid)
        if begins and self._lists is not None and self._may_be_gone(watch.pod.uid):
            self._lists.add(job.key, watch.pod.uid)
        if lost and (not job.is_large or watch is job.first_watch):
            self._resume_all(job)

    def _may_be_gone(self, uid: str) -> bool:
        """Return whether only the silence of an agent shows that its pod may be gone."""
        watch = self._by_uid.get(uid)
        return watch is not None and watch.may_be_gone()

    def _wake(self, job: JobWatches) -> None:
        """Trigger a reconcile of a job now, or later if the job had many of them."""
        if job.later_wake is not None:
            return
        loop = asyncio.get_running_loop()
        fair_share = self._status_writes_per_second / max(1, len(self._jobs))
        self._wakes.own_per_second = min(limits.WAKES.per_second, fair_share)
        seconds = job.wakes.wait(loop.time())
        if seconds > 0.0:
            job.later_wake = loop.call_later(seconds, self._wake_now, job)
        else:
            self._wake_now(job)

    def _wake_now(self, job: JobWatches) -> None:
        job.later_wake = None
        job.wakes.spend(asyncio.get_running_loop().time())
        self._wake_job(job.key)
