"""Run the operator in the test's process on a real API server and kill it at a chosen write."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus

from ddp_operator.api.pod_policy import PodTemplatePolicy
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.kinds import kinds_in_use
from ddp_operator.cluster.base import (
    ClusterError,
    ClusterSnapshot,
    ConflictError,
    Manifest,
    Request,
)
from ddp_operator.cluster.kube.cluster import KubeCluster
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.api.client import Api, operator_client
from tests.api.control_plane import ControlPlane
from tests.api.history import AuditTail, History
from tests.api.kubelet import FakeAgents, FakeStatuses
from tests.api.recorder import Recorder
from tests.operator.fake_cluster import Killed
from tests.operator.support import GUARDED
from tests.scenarios.flows import NAME

_MAX_RECONCILES = 20
"""Maximum number of reconciles until a controller must be idle."""
_RETRY_SECONDS = 0.2
DEFAULTS = replace(GUARDED, pod_template=PodTemplatePolicy.FULL)
"""Defaults of the operator, with the podTemplate policy that the control plane's chart installs."""


@dataclass(frozen=True)
class Kill:
    """The moment at which the simulated operator process is killed."""

    write: int
    """Number of the write, counted from 1."""
    after: bool
    """Whether the write takes effect. Other requests in flight always take effect."""


@dataclass
class SimulatedProcess:
    """A simulated operator process that counts its writes and can be killed."""

    kill: Kill | None
    writes: int = 0
    killed: bool = False

    def before_write(self) -> None:
        """Count a write, and raise `Killed` if the process is killed before it."""
        if self.killed:
            raise Killed
        self.writes += 1
        _writing.set(self.writes)
        self.killed = self.kill is not None and self.writes == self.kill.write
        if self.kill is not None and self.killed and not self.kill.after:
            raise Killed

    def after_request(self) -> None:
        """Raise `Killed` if the process is killed after the request that was just answered."""
        number = _writing.get()
        _writing.set(0)
        if self.killed and self.kill is not None and number == self.kill.write:
            raise Killed


_process: ContextVar[SimulatedProcess] = ContextVar("process")
"""The simulated process that the running task belongs to. All processes share one client."""
_writing: ContextVar[int] = ContextVar("writing", default=0)
"""Number of the write that the running task is sending; 0 for a read."""


@dataclass(frozen=True)
class OperatorEnvironment:
    """API server, client, fake agents and recorders that all operators of a test share."""

    api: Api
    agents: FakeAgents
    cluster: KubeCluster
    recorder: Recorder
    audit: AuditTail

    @classmethod
    @asynccontextmanager
    async def of(
        cls, control_plane: ControlPlane, api: Api, agents: FakeAgents
    ) -> AsyncIterator["OperatorEnvironment"]:
        """Yield an environment on a control plane."""

        def before_write() -> None:
            _process.get().before_write()

        def after_request(_: Request) -> None:
            _process.get().after_request()

        async with (
            operator_client(
                control_plane.operator_kubeconfig, before_write, after_request
            ) as cluster,
            Recorder.recording(api) as recorder,
        ):
            yield cls(api, agents, cluster, recorder, AuditTail(control_plane.cluster.audit_log))

    async def history(self, namespace: str) -> History:
        """Return the history of a namespace in which no more changes happen."""
        return History(await self.recorder.take(namespace), self.audit.take(namespace))


class InProcessOperator:
    """A simulated operator process that reconciles one job on request.

    A new process starts with an empty cache, as after a restart.
    """

    def __init__(
        self,
        cluster: KubeCluster,
        namespace: str,
        clock: Callable[[], datetime],
        agents: FakeAgents,
        *,
        kill: Kill | None = None,
        name: str = NAME,
        defaults: Defaults = DEFAULTS,
    ) -> None:
        self._kinds = [kind.name for kind in kinds_in_use(defaults)]
        self._cluster, self._namespace, self.key = cluster, namespace, (namespace, name)
        self._process = SimulatedProcess(kill)
        self.cache = Cache()
        self.controller = Controller(
            cluster, self.cache, defaults, clock, agents=FakeStatuses(agents)
        )

    @property
    def writes(self) -> int:
        """Number of writes that this process has sent."""
        return self._process.writes

    def activate(self) -> None:
        """Count the running task's requests as requests of this process."""
        _process.set(self._process)

    def last_snapshot(self) -> tuple[Manifest | None, list[Manifest]]:
        """Return the job and the pods with its name from the last snapshot, before later writes."""
        return self.cache.job(self.key), copy.deepcopy(self.cache.children("Pod", self.key))

    async def reconcile_once(self) -> None:
        """Take a snapshot of the namespace and reconcile the job once.

        Raises:
            Killed: The simulated process was killed.
        """
        self.activate()
        self.cache.replace(await self._snapshot())
        await self.controller.reconcile(self.key)

    async def _snapshot(self) -> ClusterSnapshot:
        """Return all objects of the namespace. Retry while the server answers 429."""
        for _ in range(_MAX_RECONCILES):
            try:
                return await self._cluster.snapshot(self._namespace, self._kinds)
            except ClusterError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
        return await self._cluster.snapshot(self._namespace, self._kinds)

    async def reconcile_until_idle(self) -> None:
        """Reconcile until a reconcile writes nothing.

        Raises:
            Killed: The simulated process was killed.
            AssertionError: Each of the allowed reconciles wrote something.
        """
        for _ in range(_MAX_RECONCILES):
            before = self.writes
            try:
                await self.reconcile_once()
            except ConflictError:
                continue
            if self.writes == before:
                return
        raise AssertionError(f"the controller still writes after {_MAX_RECONCILES} reconciles")
