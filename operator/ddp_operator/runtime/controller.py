"""Controller of one job after another: observe, decide, write the status, act, publish Events."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from ddp_operator.api.gang import GangType
from ddp_operator.api.job import DDPJob, InvalidJobError, UnreadableStatusError, parse_job
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.builders.defaults import Defaults
from ddp_operator.cluster.base import (
    Cluster,
    ClusterError,
    ConflictError,
    Key,
    Manifest,
)
from ddp_operator.limits import (
    ATTEMPTS,
    MINOR_WRITES,
    PAUSE_FACTOR,
    REQUESTS_IN_FLIGHT,
    SHARED_ATTEMPTS,
    SHORTEST_PAUSE_SECONDS,
    SHORTEST_TURN_SECONDS,
    TURN_FACTOR,
)
from ddp_operator.reconcile import checkpoint_owner
from ddp_operator.reconcile.conditions import INVALID
from ddp_operator.reconcile.invalid_spec import invalid_spec_status, refused_config
from ddp_operator.reconcile.lifecycle import is_finished
from ddp_operator.reconcile.plan import (
    CreatePod,
    Event,
    EventType,
    Plan,
)
from ddp_operator.reconcile.status_throttle import is_minor, seconds_until_write
from ddp_operator.reconcile.waiting import LOOK_SECONDS
from ddp_operator.reconcile.world import World
from ddp_operator.runtime.actions import ActionRunner
from ddp_operator.runtime.agent_statuses import AgentStatuses
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.claim_events import ClaimEvents
from ddp_operator.runtime.decider import Decider
from ddp_operator.runtime.fair_budget import FairBudget
from ddp_operator.runtime.finished_jobs import FinishedJobs
from ddp_operator.runtime.inspections import QuestionForwarder
from ddp_operator.runtime.job_state import JobState
from ddp_operator.runtime.kubernetes_nodes import NodeViews
from ddp_operator.runtime.logs import add_log_fields
from ddp_operator.runtime.orphans import Orphans
from ddp_operator.runtime.pod_lists import PodLists
from ddp_operator.runtime.pod_warnings import PodWarnings
from ddp_operator.runtime.queue_messages import QueueMessages
from ddp_operator.runtime.repairs import Repairs
from ddp_operator.runtime.sightings import Sightings
from ddp_operator.runtime.token_bucket import TokenBucket

_log = logging.getLogger(__name__)


class Controller:
    """Controller of all jobs. All workers share one instance.

    No decision depends on state that a restart of the operator would lose.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        defaults: Defaults,
        clock: Callable[[], datetime],
        *,
        agents: AgentStatuses,
        nodes: NodeViews | None = None,
        monotonic: Callable[[], float] | None = None,
        in_flight: int = REQUESTS_IN_FLIGHT,
        is_listed: Callable[[str], bool] = lambda _: True,
        others_wait: Callable[[], bool] = lambda: True,
        on_status: Callable[[DDPJobStatus, DDPJobStatus], None] = lambda *_: None,
        observe: Callable[[DDPJob], None] = lambda _: None,
        finished_jobs: FinishedJobs | None = None,
    ) -> None:
        """Create a controller.

        Args:
            cluster: Access to the cluster.
            cache: Newest known jobs and children.
            defaults: The operator's defaults for spec fields that a job leaves out.
            clock: Function that returns the current time.
            agents: Newest known statuses of agents.
            nodes: Newest known Kubernetes nodes, or None if the operator does not watch them.
            monotonic: Function that returns the seconds of a monotonic clock. None derives it from
                `clock`.
            in_flight: Maximum number of concurrent requests of one plan.
            is_listed: Function that returns whether the cache contains all jobs of a namespace.
            others_wait: Function that returns whether other jobs may wait for a worker.
            on_status: Function that is called with the old and the new status after each write.
            observe: Function that is called with the job whenever it was read or written.
            finished_jobs: Writer of the lists of finished jobs, or None if there are no lists.
        """
        self._on_status, self._observe = on_status, observe
        self._finished_jobs = finished_jobs
        self._cluster, self._cache, self._agents = cluster, cache, agents
        self._clock, self._is_listed = clock, is_listed
        self._monotonic = monotonic or (lambda: clock().timestamp())
        self._decider = Decider(cache, agents, defaults, clock, nodes)
        self._actions = ActionRunner(cluster, cache, in_flight=in_flight, others_wait=others_wait)
        self._pod_lists = PodLists(cluster, cache)
        self._orphans = Orphans(cluster) if GangType.KUEUE in defaults.gangs.types else None
        self._states: dict[Key, JobState] = {}
        self._attempts = FairBudget(ATTEMPTS, SHARED_ATTEMPTS, shortest_turn=0.0)

    def pause_seconds(self, key: Key) -> float:
        """Return the pause until the next decision about a job, in proportion to its CPU cost.

        Each pod has several events. With a decision after each event, the cost would grow with the
        square of the number of pods and delay all other jobs.
        """
        state = self._states.get(key)
        if state is None or state.creating is not None:
            return 0.0
        seconds = PAUSE_FACTOR * state.decision_seconds
        return seconds if seconds >= SHORTEST_PAUSE_SECONDS else 0.0

    def is_creating(self, key: Key) -> bool:
        """Return whether some pods of a job must still be created in its next turn."""
        state = self._states.get(key)
        return state is not None and state.creating is not None

    async def reconcile(self, key: Key) -> float | None:
        """Move one job a step closer to its spec.

        Returns:
            Seconds after which to reconcile again, or None to wait for an event.

        Raises:
            ClusterError: A request failed. The caller retries later.
        """
        raw = await self._known_job(key)
        if raw is None:
            return None
        state = self._state(key, raw["metadata"]["uid"])
        try:
            job = parse_job(raw)
        except UnreadableStatusError as error:
            text = f"{error}: a newer operator wrote it, so this operator leaves the job alone"
            await self._warn_once(state, raw, text)
            return None
        except InvalidJobError as error:
            await self._report_invalid(raw, str(error))
            return None
        self._observe(job)
        if refused := refused_config(job):
            await self._report_invalid(raw, refused)
            return None
        if job.unread:
            fields = ", ".join(f"status.{name}" for name in job.unread)
            text = f"{fields}: a newer operator wrote values that this operator does not know"
            await self._warn_once(state, raw, text)
        if checkpoint_owner.may_share(job) and not self._is_listed(key[0]):
            return LOOK_SECONDS  # The owner of its directory may be unknown.
        created_in, state.creating = state.creating, None
        world, plan = await self._decider.decide(job, self._cache.children("Pod", key), state)
        continues = _continues_creation(job, plan, created_in)
        if plan.actions and job.status.attempt > 0 and not continues:
            # Actions are decided on fresh pods, because the cache may lag behind. A job without an
            # attempt needs none: it has nothing to lose yet, and its creations are idempotent.
            pods = await self._pod_lists.read(job)
            world, plan = await self._decider.decide(job, pods, state)
        state.sightings.record_decision(undecided=plan.undecided)
        question_waits = await self._follow_agents(state, raw, world, plan)
        await self._record_end(job, state)  # Before the actions: one of them may delete the job.
        shown = replace(plan, actions=()) if continues else plan
        wait = await self._seconds_to_wait(state, raw, world, shown)
        if wait > 0.0 and continues:
            plan = replace(plan, status=job.status)  # The progress is written later.
        elif wait > 0.0:
            return min(wait, plan.requeue_seconds or wait)
        soon = await self._apply(state, raw, job, plan, continues=continues)
        return soon if question_waits is None else min(question_waits, soon or question_waits)

    async def _follow_agents(
        self, state: JobState, raw: Manifest, world: World, plan: Plan
    ) -> float | None:
        """Follow the agents of a job, and read what explains its state.

        Returns:
            Seconds for which a user's question to the ranks must wait, or None.
        """
        job, failure = world.job, plan.status.last_failure
        active = not is_finished(plan.status) and not job.spec.suspend
        followed = world.pods if active else ()
        members = job.model_copy(update={"status": plan.status}).members
        self._agents.follow(job.key, followed, members[0])
        question_waits = state.inspections.look(raw, followed)
        await state.warnings.look(world, (*world.init_pods, *followed) if active else ())
        await state.claim_events.look(world, active=active)
        await state.queue.look(world)
        cause = failure.reason if failure else None
        add_log_fields(attempt=plan.status.attempt or None, cause=cause)
        return question_waits

    async def _record_end(self, job: DDPJob, state: JobState) -> None:
        """Add a job that has ended to the list of finished jobs of its namespace."""
        if self._finished_jobs is not None and is_finished(job.status) and not state.recorded:
            state.recorded = await self._finished_jobs.record(job)

    async def _known_job(self, key: Key) -> Manifest | None:
        """Return the job with a key, or release and forget all that is left of a deleted job."""
        raw = self._cache.job(key)
        if self._orphans is not None:
            await self._orphans.release(key, raw, self._cache.children("Pod", key))
        if raw is None:
            self._forget(key)
        return raw

    async def _seconds_to_wait(
        self, state: JobState, raw: Manifest, world: World, plan: Plan
    ) -> float:
        """Return the seconds by which a plan's status write or new attempt is delayed."""
        wait, now = seconds_until_write(world, plan, state.written), world.now.timestamp()
        if is_minor(world, plan):
            wait = max(wait, self._minor_writes(state).seconds_until_token(now))
        if _starts_again(world.job, plan):
            share = state.attempts.wait(now)
            if share > 0.0:
                await self._report_delay(state, raw, plan.status.attempt, share)
            wait = max(wait, share)
        return wait

    def _minor_writes(self, state: JobState) -> TokenBucket:
        """Return the budget for a job's status writes that only follow its agents' reports."""
        state.minor_writes.per_second = 1.0 / self._agents.progress_seconds
        return state.minor_writes

    def _state(self, key: Key, uid: str) -> JobState:
        """Return the state that this process keeps about a job. Create it at the first call."""
        state = self._states.get(key)
        if state is None or state.uid != uid:
            state = self._states[key] = JobState(
                uid=uid,
                attempts=self._attempts.share(),
                minor_writes=TokenBucket(MINOR_WRITES, self._clock().timestamp()),
                repairs=Repairs(self._clock),
                sightings=Sightings(self._monotonic),
                warnings=PodWarnings(self._cluster.newest_warning),
                claim_events=ClaimEvents(self._cluster.newest_event),
                queue=QueueMessages(self._cluster.queue_message),
                inspections=QuestionForwarder(self._cluster, self._monotonic),
            )
        return state

    def _forget(self, key: Key) -> None:
        """Delete the state of a job that no longer exists."""
        self._states.pop(key, None)
        self._agents.follow(key, ())

    async def _warn_once(self, state: JobState, raw: Manifest, sentence: str) -> None:
        """Log a message and publish it as an Event, once per process."""
        if state.warned == sentence:
            return
        state.warned = sentence
        _log.warning("%s", sentence)
        await self._cluster.emit(raw, Event(EventType.WARNING, "UnknownStatus", sentence))

    async def _report_invalid(self, raw: Manifest, sentence: str) -> None:
        """Write an error into the status of an invalid job. Only an edit can fix the job."""
        status = invalid_spec_status(raw, sentence, self._clock())
        if status is None:
            return
        _log.error("the job is invalid and is not reconciled: %s", sentence)
        written = await self._write_status(raw, status)
        with contextlib.suppress(InvalidJobError):
            self._observe(parse_job(written))
        await self._cluster.emit(written, Event(EventType.WARNING, INVALID, sentence))

    async def _report_delay(
        self, state: JobState, raw: Manifest, attempt: int, seconds: float
    ) -> None:
        """Report once per attempt that the job waits because it started many attempts."""
        if state.delayed == attempt:
            return
        state.delayed = attempt
        text = (
            f"attempt {attempt} starts in up to {math.ceil(seconds)} s, because the job has begun"
            " many attempts in a short time, and further ones take turns with those of other jobs"
        )
        _log.info("%s", text)
        await self._cluster.emit(raw, Event(EventType.NORMAL, "AttemptDelayed", text))

    async def refresh(self, key: Key) -> None:
        """Read a job from the API server after a write showed that the cache is too old."""
        with self._cache.pending_request() as request:
            raw = await self._cluster.get_job(key)
            if raw is not None:
                request.put_job(raw)
            else:
                request.forget_job(key)

    async def _apply(
        self, state: JobState, raw: Manifest, job: DDPJob, plan: Plan, *, continues: bool
    ) -> float | None:
        if plan.status != job.status:
            status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            raw = await self._write_status(raw, status)
            state.written = self._clock()
            self._on_status(job.status, plan.status)
            self._observe(job.model_copy(update={"status": plan.status}))
            now = self._clock().timestamp()
            self._minor_writes(state).take(now)
            if _starts_again(job, plan):
                state.attempts.spend(now)
        for event in plan.events:
            _log.info("%s: %s", event.reason, event.message)
        # Events describe the status change that was just written. No later reconcile emits them
        # again, so they do not wait for the actions, which may fail.
        emitting = [self._cluster.emit(raw, event) for event in plan.events]
        turn = max(SHORTEST_TURN_SECONDS, TURN_FACTOR * state.decision_seconds)
        acting = self._actions.run(
            job, raw, state, plan.actions, continues=continues, shortest_turn=turn
        )
        outcome, *_ = await asyncio.gather(acting, *emitting, return_exceptions=True)
        if isinstance(outcome, ClusterError):
            await self._report_blocked(state, raw, outcome)
        if isinstance(outcome, BaseException):
            raise outcome
        state.blocked = None
        if outcome is False:
            state.creating = plan.status.attempt
        return plan.requeue_seconds

    async def _write_status(self, raw: Manifest, status: Manifest) -> Manifest:
        with self._cache.pending_request() as request:
            written = await self._cluster.write_status(raw, status)
            request.put_job(written)
        return written

    async def _report_blocked(self, state: JobState, raw: Manifest, error: ClusterError) -> None:
        """Store an API server error, so that the next reconcile writes it into the status."""
        if isinstance(error, ConflictError) or state.blocked == str(error):
            return
        state.blocked = str(error)
        await self._cluster.emit(raw, Event(EventType.WARNING, "Blocked", str(error)))


def _starts_again(job: DDPJob, plan: Plan) -> bool:
    """Return whether a plan starts an attempt other than the job's first one."""
    return plan.status.attempt > job.status.attempt > 0


def _continues_creation(job: DDPJob, plan: Plan, attempt: int | None) -> bool:
    """Return whether a plan only continues to create the pods of the job's last turn.

    These creations are idempotent, so they do not need a new list of all pods in each turn.
    """
    if attempt is None or not job.status.attempt == plan.status.attempt == attempt:
        return False
    return bool(plan.actions) and all(isinstance(one, CreatePod) for one in plan.actions)
