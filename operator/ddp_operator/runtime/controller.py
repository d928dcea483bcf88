"""Controller that observes a job, decides, writes the status, acts and publishes Events."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob, InvalidJobError, UnreadableStatusError, parse_job
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders.pod import Defaults
from ddp_operator.cluster.base import (
    Cluster,
    ClusterError,
    ConflictError,
    Key,
    Manifest,
)
from ddp_operator.reconcile import checkpoint_owner
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.invalid_spec import INVALID, invalid_spec_status, refused_config
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import (
    Action,
    CreateNetworkPolicy,
    CreatePod,
    CreateService,
    Event,
    EventType,
    Plan,
)
from ddp_operator.reconcile.status_throttle import is_minor, seconds_until_write
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.actions import SHORTEST_TURN_SECONDS, ActionRunner
from ddp_operator.runtime.agent_watcher import AgentReports
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.fair_budget import FairBudget, Rate
from ddp_operator.runtime.logs import add_log_fields
from ddp_operator.runtime.ownership import belongs, selects
from ddp_operator.runtime.pod_lists import PodLists
from ddp_operator.runtime.pod_views import PodViews
from ddp_operator.runtime.pod_warnings import PodWarnings
from ddp_operator.runtime.repairs import Repairs
from ddp_operator.runtime.sightings import Sightings
from ddp_operator.runtime.token_bucket import TokenBucket

_log = logging.getLogger(__name__)

LARGE_JOB = 500
"""Number of pods from which a decision takes long enough to delay other jobs on the event loop."""
PAUSE_FACTOR = 6.0
"""Pause of a job after a decision, as a multiple of the time that the decision took."""
_SHORTEST_PAUSE_SECONDS = 0.02
TURN_FACTOR = 5.0
"""Shortest turn in which a job's pods are created, as a multiple of the time of its decision."""
MINOR_WRITES = 16
"""Status writes of one job that may follow each other at once without any action."""
ATTEMPTS = Rate(burst=4, per_second=1 / 30)
"""Attempts of one job after its first that wait for no other job."""
SHARED_ATTEMPTS = Rate(burst=32, per_second=1.0)
"""Further attempts, of all jobs together. Each costs a request per pod, and a hostile agent can
claim both the progress and the failure that lead to the next one."""


class Controller:
    """Controller of all jobs. One instance serves all workers.

    No decision depends on state that a restart of the operator would lose.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        defaults: Defaults,
        clock: Callable[[], datetime],
        *,
        reports: AgentReports,
        monotonic: Callable[[], float] | None = None,
        in_flight: int = 32,
        is_listed: Callable[[str], bool] = lambda _: True,
        others_wait: Callable[[], bool] = lambda: True,
        on_status: Callable[[DDPJobStatus, DDPJobStatus], None] = lambda *_: None,
    ) -> None:
        """Create a controller.

        Args:
            cluster: Access to the cluster.
            cache: Newest known jobs and children.
            defaults: Values of jobs that set none.
            clock: Returns the time.
            reports: Newest known statuses of agents.
            monotonic: Returns seconds of a clock that is never set. None derives it from `clock`.
            in_flight: Maximum number of concurrent requests of one plan.
            is_listed: Returns whether the cache has had all jobs of a namespace.
            others_wait: Returns whether other jobs may wait for a worker.
            on_status: Called with the old and the new status after each write.
        """
        self._on_status = on_status
        self._cluster, self._cache, self._reports = cluster, cache, reports
        self._defaults, self._clock, self._is_listed = defaults, clock, is_listed
        self._repairs = Repairs(clock)
        self._sightings = Sightings(monotonic or (lambda: clock().timestamp()))
        self._actions = ActionRunner(
            cluster,
            cache,
            self._repairs,
            self._sightings,
            in_flight=in_flight,
            others_wait=others_wait,
        )
        self._creating: dict[Key, int] = {}
        """Attempt of each job of whose pods some remain to be created in its next turn."""
        self._pod_lists = PodLists(cluster, cache)
        self._views, self._warnings = PodViews(), PodWarnings(cluster.newest_warning)
        self._blocked: dict[Key, str] = {}
        self._warned: dict[Key, str] = {}
        self._delayed: dict[Key, int] = {}
        self._written: dict[Key, datetime] = {}
        self._minor_writes: dict[Key, TokenBucket] = {}
        self._attempts: FairBudget[Key] = FairBudget(ATTEMPTS, SHARED_ATTEMPTS, shortest_turn=0.0)
        self._decision_seconds: dict[Key, float] = {}

    def pause_seconds(self, key: Key) -> float:
        """Return for how long a job should not be decided again, in proportion to its cost.

        Each of a thousand pods has several events. To decide after each one would cost the square
        of the number of pods, and the other jobs would wait for it.
        """
        if self.is_creating(key):
            return 0.0
        seconds = PAUSE_FACTOR * self._decision_seconds.get(key, 0.0)
        return seconds if seconds >= _SHORTEST_PAUSE_SECONDS else 0.0

    def is_creating(self, key: Key) -> bool:
        """Return whether pods of a job remain to be created in its next turn."""
        return key in self._creating

    async def reconcile(self, key: Key) -> float | None:
        """Move one job a step closer to its spec.

        Returns:
            Seconds after which to reconcile again, or None to wait for an event.

        Raises:
            ClusterError: A request failed. The caller retries later.
        """
        raw = self._cache.job(key)
        if raw is None:
            self._forget(key)
            return None
        try:
            job = parse_job(raw)
        except UnreadableStatusError as error:
            text = f"{error}: a newer operator wrote it, so this one leaves the job alone"
            await self._warn_once(key, raw, text)
            return None
        except InvalidJobError as error:
            await self._report_invalid(raw, str(error))
            return None
        if refused := refused_config(job):
            await self._report_invalid(raw, refused)
            return None
        if job.unread:
            fields = ", ".join(f"status.{name}" for name in job.unread)
            text = f"{fields}: a newer operator wrote values that this one does not know"
            await self._warn_once(key, raw, text)
        if checkpoint_owner.may_share(job) and not self._is_listed(key[0]):
            return checkpoint_owner.LOOK_SECONDS  # The owner of its directory may be unknown.
        created_in = self._creating.pop(key, None)
        world, plan = await self._decide(job, self._cache.children("Pod", key))
        continues = _continues_creation(job, plan, created_in)
        if plan.actions and job.status.attempt > 0 and not continues:
            # Actions are decided on fresh pods, because the cache may lag behind. A job without an
            # attempt needs none: it has nothing to lose yet, and its creations are idempotent.
            pods = await self._pod_lists.read(job)
            world, plan = await self._decide(job, pods)
        self._sightings.record_decision(key, undecided=plan.undecided)
        active = not is_finished(plan.status) and not job.spec.suspend
        followed = world.pods if active else ()
        self._reports.follow(key, followed)
        await self._warnings.look(world, followed)
        failure = plan.status.last_failure
        add_log_fields(
            attempt=plan.status.attempt or None, cause=failure.reason if failure else None
        )
        shown = replace(plan, actions=()) if continues else plan
        wait = await self._seconds_to_wait(key, raw, world, shown)
        if wait > 0.0 and continues:
            plan = replace(plan, status=job.status)  # The progress is written later.
        elif wait > 0.0:
            return min(wait, plan.requeue_seconds or wait)
        return await self._apply(key, raw, job, plan, continues=continues)

    async def _seconds_to_wait(self, key: Key, raw: Manifest, world: World, plan: Plan) -> float:
        """Return for how long a plan must wait: for its status write, or for its new attempt."""
        wait, now = seconds_until_write(world, plan, self._written.get(key)), world.now.timestamp()
        if is_minor(world, plan):
            wait = max(wait, self._minor_writes_of(key).seconds_until_token(now))
        if _starts_again(world.job, plan):
            share = self._attempts.wait(key, now)
            if share > 0.0:
                await self._report_delay(key, raw, plan.status.attempt, share)
            wait = max(wait, share)
        return wait

    def _forget(self, key: Key) -> None:
        """Forget a job that no longer exists."""
        states = (self._blocked, self._warned, self._delayed, self._written)
        for state in (*states, self._minor_writes, self._decision_seconds, self._creating):
            state.pop(key, None)
        self._repairs.forget(key)
        self._sightings.forget(key)
        self._attempts.forget(key)
        self._views.forget(key)
        self._warnings.forget(key)
        self._reports.follow(key, ())

    def _minor_writes_of(self, key: Key) -> TokenBucket:
        """Return the budget of a job's status writes that change only what its agents report."""
        if key not in self._minor_writes:
            now = self._clock().timestamp()
            self._minor_writes[key] = TokenBucket(MINOR_WRITES, 1.0, now)
        self._minor_writes[key].per_second = 1.0 / self._reports.progress_seconds
        return self._minor_writes[key]

    async def _warn_once(self, key: Key, raw: Manifest, sentence: str) -> None:
        """Log a sentence and publish it as an Event, unless this process did so before."""
        if self._warned.get(key) == sentence:
            return
        self._warned[key] = sentence
        _log.warning("%s", sentence)
        await self._cluster.emit(raw, Event(EventType.WARNING, "UnknownStatus", sentence))

    async def _report_invalid(self, raw: Manifest, sentence: str) -> None:
        """Write into the status why the job is invalid. Only an edit of the job can fix it."""
        status = invalid_spec_status(raw, sentence, self._clock())
        if status is None:
            return
        _log.error("the job is invalid and is not reconciled: %s", sentence)
        written = await self._write_status(raw, status)
        await self._cluster.emit(written, Event(EventType.WARNING, INVALID, sentence))

    async def _report_delay(self, key: Key, raw: Manifest, attempt: int, seconds: float) -> None:
        """Log and publish once per attempt that it waits for its share of the attempts."""
        if self._delayed.get(key) == attempt:
            return
        self._delayed[key] = attempt
        text = (
            f"attempt {attempt} starts in up to {math.ceil(seconds)} s, because the job has begun"
            " many attempts in a short time, and further ones take turns with those of other jobs"
        )
        _log.info("%s", text)
        await self._cluster.emit(raw, Event(EventType.NORMAL, "AttemptDelayed", text))

    async def refresh(self, key: Key) -> None:
        """Read a job again after a write showed that the cache lags behind."""
        with self._cache.pending_request() as request:
            raw = await self._cluster.get_job(key)
            if raw is not None:
                request.put_job(raw)
            else:
                request.forget_job(key)

    async def _decide(self, job: DDPJob, pods: Sequence[Manifest]) -> tuple[World, Plan]:
        """Return the observed state and the plan for it."""
        owner = self._checkpoint_owner(job)

        def look() -> tuple[World, Plan]:
            # The time of this thread: what other threads and processes do meanwhile is no cost.
            started = time.thread_time()
            world = replace(self._observe(job, pods), checkpoint_owner=owner)
            plan = self._without_held_repairs(job, decide(world, self._defaults))
            self._decision_seconds[job.key] = time.thread_time() - started
            return world, plan

        if max(len(pods), job.nodes) < LARGE_JOB:
            found = look()
        else:
            # The Lease, the health endpoint and other jobs go on meanwhile.
            found = await asyncio.to_thread(look)
        return found

    def _checkpoint_owner(self, job: DDPJob) -> str | None:
        """Return the name of the job that owns the directory of this one's checkpoints, or None."""
        asks = job.spec.checkpoint is not None and not job.spec.suspend
        if not asks or is_finished(job.status):
            return None
        return self._cache.directories.owner(job.key)

    def _observe(self, job: DDPJob, pods: Sequence[Manifest]) -> World:
        """Return the observed state. No observation waits for an agent. Any thread may call it."""
        views = self._views.of(job.key, [p for p in pods if belongs(p, job)])
        services = self._children("Service", job)
        policies = self._children("NetworkPolicy", job)
        known = self._reports.statuses(views)
        return World(
            job=job,
            now=self._clock(),
            pods=self._warnings.added_to(job.key, views),
            service_exists=any(selects(service, job) for service in services),
            network_policy=next((policy["spec"] for policy in policies), None),
            # The address may belong to a pod of another job by now.
            agent_statuses={u: s for u, s in known.items() if s.job_uid in {job.metadata.uid, ""}},
            silent=self._reports.silent(views),
            progress_interval=timedelta(seconds=self._reports.progress_seconds),
            undecided_for=self._sightings.undecided_for(job.key),
            deleting_for=self._sightings.deleting_for(job.key, views),
            creation_waits=self._sightings.creation_waits(job.key, job.status.attempt),
            blocked=self._blocked.get(job.key),
        )

    def _without_held_repairs(self, job: DDPJob, plan: Plan) -> Plan:
        """Return a plan without repairs of children that another writer changes again and again."""

        def is_held(action: Action) -> bool:
            if not isinstance(action, CreateService | CreateNetworkPolicy):
                return False
            kind, name = action.manifest["kind"], action.manifest["metadata"]["name"]
            exists = any(c["metadata"]["name"] == name for c in self._children(kind, job))
            return exists and self._repairs.is_held(job.key, kind, name)

        held = [one for one in plan.actions if is_held(one)]
        if not held:
            return plan
        return replace(plan, actions=tuple(one for one in plan.actions if one not in held))

    def _children(self, kind: str, job: DDPJob) -> list[Manifest]:
        return [c for c in self._cache.children(kind, job.key) if belongs(c, job)]

    async def _apply(
        self, key: Key, raw: Manifest, job: DDPJob, plan: Plan, *, continues: bool
    ) -> float | None:
        if plan.status != job.status:
            status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            raw = await self._write_status(raw, status)
            self._written[key] = self._clock()
            self._on_status(job.status, plan.status)
            now = self._clock().timestamp()
            self._minor_writes_of(key).take(now)
            if _starts_again(job, plan):
                self._attempts.spend(key, now)
        for event in plan.events:
            _log.info("%s: %s", event.reason, event.message)
        # Events describe the status change that was just written. No later reconcile emits them
        # again, so they do not wait for the actions, which may fail.
        emitting = [self._cluster.emit(raw, event) for event in plan.events]
        turn = max(SHORTEST_TURN_SECONDS, TURN_FACTOR * self._decision_seconds.get(key, 0.0))
        acting = self._actions.run(job, raw, plan.actions, continues=continues, shortest_turn=turn)
        outcome, *_ = await asyncio.gather(acting, *emitting, return_exceptions=True)
        if isinstance(outcome, ClusterError):
            await self._report_blocked(key, raw, outcome)
        if isinstance(outcome, BaseException):
            raise outcome
        self._blocked.pop(key, None)
        if outcome is False:
            self._creating[key] = plan.status.attempt
        return plan.requeue_seconds

    async def _write_status(self, raw: Manifest, status: Manifest) -> Manifest:
        with self._cache.pending_request() as request:
            written = await self._cluster.write_status(raw, status)
            request.put_job(written)
        return written

    async def _report_blocked(self, key: Key, raw: Manifest, error: ClusterError) -> None:
        """Store the error, so that the next reconcile writes it into the status."""
        if isinstance(error, ConflictError) or self._blocked.get(key) == str(error):
            return
        self._blocked[key] = str(error)
        await self._cluster.emit(raw, Event(EventType.WARNING, "Blocked", str(error)))


def _starts_again(job: DDPJob, plan: Plan) -> bool:
    """Return whether a plan begins an attempt that is not the job's first."""
    return plan.status.attempt > job.status.attempt > 0


def _continues_creation(job: DDPJob, plan: Plan, attempt: int | None) -> bool:
    """Return whether a plan only creates more pods of the attempt of the job's last turn.

    Such creations are idempotent, so they need no fresh list of all pods in each turn.
    """
    if attempt is None or not job.status.attempt == plan.status.attempt == attempt:
        return False
    return bool(plan.actions) and all(isinstance(one, CreatePod) for one in plan.actions)
