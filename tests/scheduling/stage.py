"""Clusters of fake nodes with real schedulers, and the operator's settings for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ddp_operator.api.gang import GangType
from ddp_operator.builders.defaults import Defaults
from ddp_operator.builders.gangs.versions import KNOWN_VERSIONS, Gangs, group_kind
from tests.api.client import eventually, path_of
from tests.api.control_plane import TESTED, ControlPlane, Release
from tests.api.in_process_operator import DEFAULTS, OperatorEnvironment
from tests.harness import fake_nodes
from tests.harness.fake_nodes import FakeNode
from tests.scheduling.job import ScheduledJob

JSON = dict[str, Any]
SCHEDULER = "kube-scheduler"
GPUS_PER_NODE = 8
GPUS = {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": str(GPUS_PER_NODE)}
"""Capacity of a node that has room for one pod with 8 GPUs."""


@contextmanager
def scheduler_cluster(
    nodes: Sequence[FakeNode],
    release: Release = TESTED,
    gangs: Sequence[str] = ("gangs.types={Native}",),
) -> Iterator[ControlPlane]:
    """Yield a control plane with the product installed, its scheduler and fake nodes.

    Args:
        nodes: The nodes.
        release: Release of Kubernetes. Its own gang scheduling is switched on.
        gangs: Values of the chart about gangs.
    """
    plane = ControlPlane.up(release, gangs)
    try:
        arguments = {SCHEDULER: [release.gate_argument]}
        fake_nodes.start(plane.cluster, nodes, kubernetes=release.kubernetes, extra_args=arguments)
        plane.wait_until_limited()
        yield plane
    finally:
        plane.cluster.down()


@dataclass
class Stage:
    """The jobs of one test in its namespace."""

    environment: OperatorEnvironment
    namespace: str
    defaults: Defaults = DEFAULTS
    group_api: str = ""
    """API version of the group objects, if the operator offers a gang scheduler."""

    def job(self, name: str) -> ScheduledJob:
        """Return a job, not created yet."""
        return ScheduledJob(self.environment, self.namespace, name, self.defaults)

    def with_gang(self, gang: GangType, api_version: str, scheduler: str | None = None) -> "Stage":
        """Return the same with an operator that offers a gang scheduler."""
        assert api_version in KNOWN_VERSIONS[gang]
        gangs = Gangs(
            types=(gang,), served=((gang, api_version),), coscheduling_scheduler=scheduler
        )
        defaults = replace(self.defaults, gangs=gangs)
        return replace(self, defaults=defaults, group_api=api_version)

    async def groups(self) -> list[str]:
        """Return the names of all group objects."""
        resource = f"{group_kind(self.group_api).lower()}s"
        path = f"/apis/{self.group_api}/namespaces/{self.namespace}/{resource}"
        found = await self.environment.api.call("GET", path)
        return [one["metadata"]["name"] for one in found["items"]]

    async def clear(self) -> None:
        """Delete all jobs, and wait until their pods are gone."""
        api = self.environment.api
        await api.call("DELETE", path_of("ddpjobs", self.namespace))

        async def is_empty() -> bool:
            left = [await api.list(kind, self.namespace) for kind in ("ddpjobs", "pods")]
            return not any(left)

        await eventually(is_empty, "the jobs and their pods are deleted", 60.0)
