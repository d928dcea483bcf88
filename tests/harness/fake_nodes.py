"""Fake nodes for a cluster without real ones: a real scheduler, and kwok in place of kubelets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness import binaries, gobuild, paths, processes
from tests.harness.api import Api
from tests.harness.cluster import Cluster
from tests.harness.controlplane import ControlPlane
from tests.harness.errors import HarnessError
from tests.harness.gobuild import ToolSet
from tests.harness.pki import Authority
from tests.harness.run import Figures, command

_READY_LIMIT_S: Final = 60.0
_CAPACITY: Final = {
    "cpu": "100000",
    "memory": "1000Ti",
    "pods": "100000",
    "nvidia.com/gpu": "100000",
}


@dataclass(frozen=True)
class FakeNode:
    """A node that only kwok knows.

    Attributes:
        name: Its name.
        labels: Labels beside the host name.
        capacity: What its pods can request, beside the amounts that suffice for any pod.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)


def add(cluster: Cluster, count: int) -> None:
    """Add fake nodes with room for any number of pods, and wait until they are ready.

    Raises:
        HarnessError: The cluster has real nodes, or a process ended or took too long.
    """
    start(cluster, [FakeNode(f"fake-{number:03d}") for number in range(count)])


def start(
    cluster: Cluster,
    nodes: Sequence[FakeNode],
    *,
    kubernetes: ToolSet = gobuild.KUBERNETES,
    extra_args: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Start the scheduler and kwok, add fake nodes and wait until they are ready.

    kwok shows a pod as running as soon as it is bound, and removes it as soon as it is deleted.
    All pod addresses are local to this machine, so that one process can answer for all agents.

    Args:
        cluster: A cluster without real nodes.
        nodes: The first nodes. `create` adds others.
        kubernetes: Release of the cluster's control plane.
        extra_args: Further arguments by process name.

    Raises:
        HarnessError: The cluster has real nodes, or a process ended or took too long.
    """
    if cluster.nodes:
        raise HarnessError("Fake nodes need a cluster without real nodes.")
    tools = binaries.for_fake_nodes(Figures(quiet=True), kubernetes)
    route = ["ip", "route", "add", "local", paths.FAKE_POD_NETWORK, "dev", paths.BRIDGE]
    command(route, "Adding the route of fake pods")
    plane = ControlPlane(tools, Authority(paths.STATE / "pki"), 0, extra_args or {})
    plane.start_scheduler()
    plane.start_kwok()
    create(cluster, nodes)


def create(cluster: Cluster, nodes: Sequence[FakeNode]) -> None:
    """Add fake nodes to a cluster that has some, and wait until they are ready.

    Raises:
        HarnessError: A process ended, or a node took too long.
    """
    authority = Authority(paths.STATE / "pki")
    api, names = Api(authority, authority.files("admin")), [node.name for node in nodes]
    for node in nodes:
        api.create("/api/v1/nodes", _manifest(node))
    # Without a node controller nothing else removes the taint of a new node.
    cluster.kubectl("taint", "node", *names, "node.kubernetes.io/not-ready-")
    processes.wait_for(
        "the fake nodes",
        lambda: all(_is_ready(api, name) for name in names),
        deadline_s=_READY_LIMIT_S,
        needs=("kwok",),
    )


def _manifest(node: FakeNode) -> dict[str, Any]:
    capacity = {**_CAPACITY, **node.capacity}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {"kubernetes.io/hostname": node.name, **node.labels},
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _is_ready(api: Api, name: str) -> bool:
    node = api.get(f"/api/v1/nodes/{name}") or {}
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
