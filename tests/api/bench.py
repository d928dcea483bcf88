"""The operator in the test's own process, on a real API server: it can be killed at a write."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from ddp_operator.cluster.base import ClusterError, ConflictError, Manifest, Snapshot
from ddp_operator.cluster.kube import KubeCluster
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.api.client import Api, operator_client
from tests.api.history import AuditTail, History
from tests.api.kubelet import Agents
from tests.api.plane import Plane
from tests.api.recorder import Recorder
from tests.operator.fake_cluster import Killed
from tests.operator.support import DEFAULTS
from tests.scenarios.flows import NAME

_LOOKS = 20
"""Within which a controller finds rest while nothing else happens."""
_PATIENCE_SECONDS = 0.2


@dataclass(frozen=True)
class Kill:
    """When the operator's process ends."""

    write: int
    """Counted from 1."""
    after: bool
    """Whether the write takes effect; what is on its way by then always does."""


@dataclass
class Life:
    """The operator's process, as far as it can die."""

    kill: Kill | None
    writes: int = 0
    dead: bool = False

    def before_write(self) -> None:
        """A write is about to be sent."""
        if self.dead:
            raise Killed
        self.writes += 1
        _writing.set(self.writes)
        self.dead = self.kill is not None and self.writes == self.kill.write
        if self.kill is not None and self.dead and not self.kill.after:
            raise Killed

    def after_request(self) -> None:
        """A request has been answered."""
        number = _writing.get()
        _writing.set(0)
        if self.dead and self.kill is not None and number == self.kill.write:
            raise Killed


_life: ContextVar[Life] = ContextVar("life")
"""The process that the running task belongs to: all share one client and its connections."""
_writing: ContextVar[int] = ContextVar("writing", default=0)


@dataclass(frozen=True)
class Bench:
    """What all operators of a test share, and what records them."""

    api: Api
    agents: Agents
    cluster: KubeCluster
    recorder: Recorder
    audit: AuditTail

    @classmethod
    @asynccontextmanager
    async def of(cls, plane: Plane, api: Api, agents: Agents) -> AsyncIterator["Bench"]:
        """A bench on a control plane."""

        def before() -> None:
            _life.get().before_write()

        def after(_: bool) -> None:
            _life.get().after_request()

        async with (
            operator_client(plane.operator, before, after) as cluster,
            Recorder.recording(api) as recorder,
        ):
            yield cls(api, agents, cluster, recorder, AuditTail(plane.cluster.audit_log))

    async def history(self, namespace: str) -> History:
        """What has happened in a namespace in which nothing happens any more."""
        return History(await self.recorder.take(namespace), self.audit.take(namespace))


class Operator:
    """A process of the operator that looks at one job when it is told to.

    A new one knows nothing but what it reads.
    """

    def __init__(
        self,
        cluster: KubeCluster,
        namespace: str,
        clock: Callable[[], datetime],
        *,
        kill: Kill | None = None,
        name: str = NAME,
    ) -> None:
        self._cluster, self._namespace, self.key = cluster, namespace, (namespace, name)
        self._life = Life(kill)
        self.cache = Cache()
        self.controller = Controller(cluster, self.cache, DEFAULTS, clock)

    @property
    def writes(self) -> int:
        """How many it has sent."""
        return self._life.writes

    def take_over(self) -> None:
        """What the running task does from now on is this process's doing."""
        _life.set(self._life)

    def seen(self) -> tuple[Manifest | None, list[Manifest]]:
        """The job and the pods by its name as its last look found them, before its writes."""
        return self.cache.job(self.key), copy.deepcopy(self.cache.children("Pod", self.key))

    async def look(self) -> None:
        """One look at the newest state.

        Raises:
            Killed: The process ends.
        """
        self.take_over()
        self.cache.replace(await self._snapshot())
        await self.controller.reconcile(self.key)

    async def _snapshot(self) -> Snapshot:
        """All that is in the namespace; a server that asks to wait is asked again."""
        for _ in range(_LOOKS):
            try:
                return await self._cluster.snapshot(self._namespace)
            except ClusterError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            await asyncio.sleep(_PATIENCE_SECONDS)
        return await self._cluster.snapshot(self._namespace)

    async def settle(self) -> None:
        """Look until a look writes nothing.

        Raises:
            Killed: The process ends.
            AssertionError: It always finds something to write.
        """
        for _ in range(_LOOKS):
            before = self.writes
            try:
                await self.look()
            except ConflictError:
                continue
            if self.writes == before:
                return
        raise AssertionError(f"the controller finds no rest in {_LOOKS} looks")
