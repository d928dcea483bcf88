"""Run the actions of a plan. Jobs take turns to create their pods.

Actions run in stages. Deletions come first because they free names, then Service and NetworkPolicy,
then pods and attempt orders together. A stage starts when the previous stage has ended without an
error.

The creation of thousands of pods must not block other jobs. So a job creates pods only until its
turn ends, and creates the remaining pods in its next turn. The number of concurrent requests starts
small, because an API server that refuses the first pod, for example because of a quota, would
refuse all of them. Jobs that create pods at the same time share the concurrent requests evenly.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.builders.gangs.kueue import NOT_RETRIABLE, RETRIABLE
from ddp_operator.builders.kinds import row_name
from ddp_operator.builders.pod import with_secrets
from ddp_operator.cluster.base import Cluster, ClusterError, Manifest
from ddp_operator.limits import FIRST_PODS, LONGEST_TURN_SECONDS, SHORTEST_TURN_SECONDS
from ddp_operator.reconcile.claims import CLAIM
from ddp_operator.reconcile.plan import (
    Action,
    CreatePod,
    DeleteChild,
    DeleteJob,
    DeletePod,
    DeleteWorkload,
    EndGroup,
    EndPod,
    EnsureChild,
    PatchClaim,
    SetAttempt,
)
from ddp_operator.reconcile.world import RefusedPatch
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.job_state import JobState
from ddp_operator.runtime.slow_start import slow_start
from ddp_wire import contract
from ddp_wire.messages import AttemptOrder
from ddp_wire.orders import order_from_text
from ddp_wire.signatures import random_text

_REFUSED = {HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY}
"""HTTP statuses of a request that the API server would refuse again."""


class ActionRunner:
    """Runner of the actions of all jobs. All workers share one instance."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        in_flight: int,
        others_wait: Callable[[], bool],
    ) -> None:
        """Create a runner.

        Args:
            cluster: Access to the cluster.
            cache: Cache in which the runner stores the created and changed children.
            in_flight: Maximum number of concurrent requests of one plan.
            others_wait: Function that returns whether other jobs wait for a worker.
        """
        self._cluster, self._cache = cluster, cache
        self._in_flight, self._others_wait = in_flight, others_wait
        self._creating = 0
        """Number of plans whose pods are being created."""

    async def run(
        self,
        job: DDPJob,
        raw: Manifest,
        state: JobState,
        actions: Sequence[Action],
        *,
        continues: bool = False,
        shortest_turn: float = SHORTEST_TURN_SECONDS,
    ) -> bool:
        """Run actions: first deletions, then the Service and NetworkPolicy, then pods and orders.

        Args:
            job: The job.
            raw: The job's manifest, for Events.
            state: The job's state, in which the runner records created pods and restored children.
            actions: Actions of the job's plan.
            continues: Whether the API server accepted pods of this job in the previous turn.
            shortest_turn: Seconds for which pods are created, even if other jobs wait.

        Returns:
            Whether all actions ran. Otherwise pods remain to be created in the job's next turn.
        """
        slots = asyncio.Semaphore(self._in_flight)
        do = partial(self._do, job, raw, state, slots=slots)
        children = [one for one in actions if isinstance(one, EnsureChild)]
        ends = (DeletePod, DeleteChild, DeleteWorkload, EndPod, EndGroup, DeleteJob)
        await _all([do(one) for one in actions if isinstance(one, ends)])
        await _all([do(one) for one in children if one.kind.before_pods])
        creations = [one for one in actions if isinstance(one, CreatePod)]
        others: list[Action] = [o for o in actions if isinstance(o, SetAttempt | PatchClaim)]
        others += [one for one in children if not one.kind.before_pods]
        first = self._in_flight if continues else FIRST_PODS
        outcomes = await asyncio.gather(
            self._create_pods(do, creations, first, shortest_turn),
            _all([do(one) for one in others]),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes[0] == 0

    async def _create_pods(
        self,
        do: Callable[[Action], Coroutine[Any, Any, None]],
        creations: Sequence[CreatePod],
        first: int,
        shortest_turn: float,
    ) -> int:
        """Create pods until the job's turn ends. Return the number of pods not yet created."""
        if not creations:
            return 0
        new = random_text()
        creations = [replace(c, job_secret=new) if c.job_secret is None else c for c in creations]
        loop = asyncio.get_running_loop()
        began = loop.time()

        def ends() -> bool:
            seconds = loop.time() - began
            limit = shortest_turn if self._others_wait() else LONGEST_TURN_SECONDS
            return seconds >= max(shortest_turn, limit)

        requests = [partial(do, creation) for creation in creations]
        self._creating += 1
        try:
            return await slow_start(requests, first=first, most=self._share, ends=ends)
        finally:
            self._creating -= 1

    def _share(self) -> int:
        """Return how many creations one job may run concurrently. All jobs share the total."""
        return max(FIRST_PODS, self._in_flight // max(1, self._creating))

    async def _do(
        self,
        job: DDPJob,
        raw: Manifest,
        state: JobState,
        action: Action,
        *,
        slots: asyncio.Semaphore,
    ) -> None:
        namespace, cluster = job.metadata.namespace, self._cluster
        async with slots:
            match action:
                case EnsureChild():
                    await self._create(raw, state, action.manifest)
                case CreatePod():
                    secrets = random_text(), action.job_secret or ""
                    await self._create(raw, state, with_secrets(action.manifest, *secrets))
                    state.sightings.record_creation(action.attempt, action.index)
                case DeletePod():
                    await cluster.delete_pod(
                        namespace, action.name, action.uid, action.grace_seconds
                    )
                case DeleteChild():
                    await cluster.delete_child(action.kind, namespace, action.name, action.uid)
                case PatchClaim():
                    await self._patch_claim(namespace, state, action)
                case EndPod():
                    await cluster.end_pod(namespace, action.name, action.uid)
                case DeleteWorkload() | EndGroup():
                    await self._end_group(namespace, state, action)
                case SetAttempt():
                    self._send_order(job, action)
                    order = {contract.ANNOTATION_ATTEMPT: action.value}
                    await self._annotate(namespace, action, order)
                case DeleteJob():
                    await cluster.delete_job(job.key, action.uid)

    async def _patch_claim(self, namespace: str, state: JobState, action: PatchClaim) -> None:
        """Change a claim. Store a refusal, which no repetition of the request would change."""
        state.refused_claim = None
        try:
            with self._cache.pending_request() as request:
                claim = await self._cluster.patch_claim(
                    namespace, action.name, action.uid, action.patch
                )
                if claim is not None:
                    request.put_child(CLAIM, claim)
        except ClusterError as error:
            if error.status not in _REFUSED:
                raise
            state.refused_claim = RefusedPatch(action.patch, str(error))

    async def _create(self, raw: Manifest, state: JobState, manifest: Manifest) -> None:
        writers: list[str] = []
        with self._cache.pending_request() as request:
            created = await self._cluster.create(manifest, writers.append)
            request.put_child(row_name(manifest), created)
        for writer in writers:
            kind, name = row_name(manifest), manifest["metadata"]["name"]
            event = state.repairs.record(kind, name, writer)
            if event is not None:
                await self._cluster.emit(raw, event)

    async def _end_group(
        self, namespace: str, state: JobState, action: DeleteWorkload | EndGroup
    ) -> None:
        if isinstance(action, EndGroup):
            await self._annotate(namespace, action, {RETRIABLE: NOT_RETRIABLE})
        elif action.name not in state.deleted_workloads:
            await self._cluster.delete_workload(namespace, action.name)
            state.deleted_workloads.add(action.name)

    def _send_order(self, job: DDPJob, action: SetAttempt) -> None:
        """Send the order to the agent directly, because the kubelet delivers annotations late."""
        order = order_from_text(action.value)
        if action.ip is not None and order is not None:
            request = AttemptOrder.of(job.metadata.uid, order)
            self._cluster.send_order(action.ip, action.port, action.secret, request)

    async def _annotate(
        self, namespace: str, action: SetAttempt | EndGroup, annotations: Mapping[str, str]
    ) -> None:
        with self._cache.pending_request() as request:
            pod = await self._cluster.annotate_pod(namespace, action.name, action.uid, annotations)
            if pod is not None:
                request.put_child("Pod", pod)


async def _all(running: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all actions concurrently. Raise the first error after all have ended."""
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
