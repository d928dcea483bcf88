"""The heart: observe a job, decide, write the status, act, tell."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from ddp_operator.api.job import DDPJob, InvalidJobError, parse_job
from ddp_operator.api.status import ConditionType
from ddp_operator.builders import names
from ddp_operator.builders.pod import Defaults
from ddp_operator.cluster.base import Cluster, ClusterError, ConflictError, Key, Manifest
from ddp_operator.reconcile.decide import decide
from ddp_operator.reconcile.invalid import INVALID, with_invalid_spec
from ddp_operator.reconcile.life import is_finished
from ddp_operator.reconcile.pacing import seconds_to_wait
from ddp_operator.reconcile.plan import (
    Action,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    Event,
    EventType,
    Plan,
    SetAttempt,
)
from ddp_operator.reconcile.world import PodView, World, view_pod
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.logs import note
from ddp_operator.runtime.vigil import Vigil
from ddp_wire import contract
from ddp_wire.contract import AgentStatus, AttemptOrder

_log = logging.getLogger(__name__)


class Controller:
    """Reconciles jobs. One instance serves all workers; nothing it remembers decides anything."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        defaults: Defaults,
        clock: Callable[[], datetime],
        *,
        vigil: Vigil | None = None,
        in_flight: int = 32,
    ) -> None:
        """Without a vigil losses are noticed by the readiness of pods alone."""
        self._cluster, self._cache, self._vigil = cluster, cache, vigil
        self._defaults, self._clock = defaults, clock
        self._in_flight = asyncio.Semaphore(in_flight)
        self._blocked: dict[Key, str] = {}
        self._written: dict[Key, datetime] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Bring one job a step nearer to what its spec asks for.

        Returns:
            Seconds after which to look again, or None to wait for an event.

        Raises:
            ClusterError: A request failed; the caller tries again later.
        """
        raw = self._cache.job(key)
        if raw is None:
            self._blocked.pop(key, None)
            self._written.pop(key, None)
            self._attend(key, ())
            return None
        try:
            job = parse_job(raw)
        except InvalidJobError as error:
            await self._leave_alone(raw, str(error))
            return None
        heard: dict[str, AgentStatus | None] = {}
        world = await self._observe(job, self._cache.children("Pod", key), heard)
        plan = decide(world, self._defaults)
        if plan.actions and job.status.attempt > 0:
            # What changes the world is decided on a fresh look: the cache may lag behind. A job
            # without an attempt has nothing yet that could be lost; what it creates is idempotent.
            pods = await self._cluster.list_pods(key[0], names.pod_selector(job))
            world = await self._observe(job, pods, heard)
            plan = decide(world, self._defaults)
        active = not is_finished(plan.status) and not job.spec.suspend
        self._attend(key, world.pods if active else ())
        failure = plan.status.last_failure
        note(attempt=plan.status.attempt or None, cause=failure.reason if failure else None)
        wait = seconds_to_wait(world, plan, self._written.get(key))
        if wait > 0.0:
            return min(wait, plan.requeue_seconds or wait)
        return await self._carry_out(key, raw, job, plan)

    async def _leave_alone(self, raw: Manifest, sentence: str) -> None:
        """Say in the status what is wrong with a job that only an edit of it can mend."""
        status = with_invalid_spec(raw, sentence, self._clock())
        if status is None:
            return
        _log.error("left alone: %s", sentence)
        written = await self._cluster.write_status(raw, status)
        self._cache.put_job(written)
        await self._cluster.emit(written, Event(EventType.WARNING, INVALID, sentence))

    async def refresh(self, key: Key) -> None:
        """Read a job anew, after a write showed that the cache lags behind."""
        raw = await self._cluster.get_job(key)
        if raw is not None:
            self._cache.put_job(raw)
        else:
            self._cache.forget_job(key)

    async def _observe(
        self, job: DDPJob, pods: Sequence[Manifest], heard: dict[str, AgentStatus | None]
    ) -> World:
        """What is the case; `heard` is what agents have said when asked, so that each is once."""
        mine = [p for p in pods if _belongs(p, job)]
        views = tuple(view_pod(p) for p in mine)
        services = self._cache.children("Service", job.key)
        reports = await self._ask_agents(job, views, heard)
        return World(
            job=job,
            now=self._clock(),  # It takes a while to learn that an agent does not answer.
            pods=views,
            service_exists=any(_belongs(s, job) for s in services),
            reports=reports,
            blocked=self._blocked.get(job.key),
        )

    def _attend(self, key: Key, pods: Sequence[PodView]) -> None:
        if self._vigil is not None:
            self._vigil.attend(key, pods)

    async def _ask_agents(
        self, job: DDPJob, pods: Sequence[PodView], heard: dict[str, AgentStatus | None]
    ) -> dict[str, AgentStatus]:
        """Words of the agents: of node 0 as it is now, of others as they were told or are asked.

        They are asked as long as not all ranks train.
        """
        if is_finished(job.status) or job.spec.suspend:
            return {}
        told = self._vigil.words(pods) if self._vigil is not None else {}
        formed = job.status.is_true(ConditionType.RENDEZVOUSED)
        whole = formed and all(pod.ready for pod in pods)
        known = pods if whole else [p for p in pods if p.uid in told]
        asked = [p for p in pods if not p.terminal and p.ip and (p.index == 0 or p not in known)]
        new = [pod for pod in asked if pod.uid not in heard]
        answers = await asyncio.gather(*(self._ask(pod) for pod in new))
        heard |= {pod.uid: answer for pod, answer in zip(new, answers, strict=True)}
        fresh = {p.uid: a for p in asked if (a := heard[p.uid]) is not None}
        words = {**told, **fresh}
        # An address may have come to a pod of another job since it was read.
        return {u: w for u, w in words.items() if w.job_uid in {job.metadata.uid, ""}}

    async def _ask(self, pod: PodView) -> AgentStatus | None:
        async with self._in_flight:
            return await self._cluster.ask_agent(pod)

    async def _carry_out(self, key: Key, raw: Manifest, job: DDPJob, plan: Plan) -> float | None:
        if plan.status != job.status:
            status = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            raw = await self._cluster.write_status(raw, status)
            self._cache.put_job(raw)
            self._written[key] = self._clock()
        for event in plan.events:
            _log.info("%s: %s", event.reason, event.message)
        # Events tell of what the status now says. No later look will find cause to tell them again,
        # so they do not wait for the actions, which may fail; nor do the actions wait for them.
        telling = [self._cluster.emit(raw, event) for event in plan.events]
        acted, *_ = await asyncio.gather(
            self._act(job, plan.actions), *telling, return_exceptions=True
        )
        if isinstance(acted, ClusterError):
            await self._report_blocked(key, raw, acted)
        if isinstance(acted, BaseException):
            raise acted
        self._blocked.pop(key, None)
        return plan.requeue_seconds

    async def _act(self, job: DDPJob, actions: Sequence[Action]) -> None:
        """Deletions first, since they free names; then the Service; then pods, all at once."""
        stages: tuple[tuple[type[Action], ...], ...] = (
            (DeletePod, DeleteJob),
            (CreateService,),
            (CreatePod, SetAttempt),
        )
        for stage in stages:
            todo = [self._do(job, action) for action in actions if isinstance(action, stage)]
            outcomes = await asyncio.gather(*todo, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _do(self, job: DDPJob, action: Action) -> None:
        namespace, cluster = job.metadata.namespace, self._cluster
        async with self._in_flight:
            match action:
                case CreateService() | CreatePod():
                    made = await cluster.create(action.manifest)
                    self._cache.put_child(action.manifest["kind"], made)
                case DeletePod():
                    await cluster.delete_pod(
                        namespace, action.name, action.uid, action.grace_seconds
                    )
                case SetAttempt():
                    await asyncio.gather(self._tell(job, action), self._annotate(namespace, action))
                case DeleteJob():
                    await cluster.delete_job(job.key, action.uid)

    async def _tell(self, job: DDPJob, action: SetAttempt) -> None:
        """Tell the agent itself, which spares the annotation's way through the kubelet."""
        if action.ip is not None and action.value != contract.ATTEMPT_STOP:
            order = AttemptOrder(job_uid=job.metadata.uid, attempt=int(action.value))
            await self._cluster.order_attempt(action.ip, order)

    async def _annotate(self, namespace: str, action: SetAttempt) -> None:
        annotations = {contract.ANNOTATION_ATTEMPT: action.value}
        told = await self._cluster.annotate_pod(namespace, action.name, action.uid, annotations)
        if told is not None:
            self._cache.put_child("Pod", told)

    async def _report_blocked(self, key: Key, raw: Manifest, error: ClusterError) -> None:
        """Remember what was refused: the next look puts it into the status."""
        if isinstance(error, ConflictError) or self._blocked.get(key) == str(error):
            return
        self._blocked[key] = str(error)
        await self._cluster.emit(raw, Event(EventType.WARNING, "Blocked", str(error)))


def _belongs(child: Manifest, job: DDPJob) -> bool:
    labels = child["metadata"].get("labels") or {}
    return bool(labels.get(contract.LABEL_JOB_UID) == job.metadata.uid)
