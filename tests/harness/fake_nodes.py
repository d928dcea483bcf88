"""Fake nodes for a cluster without real ones: a real scheduler, and kwok in place of kubelets."""

from __future__ import annotations

from typing import Any, Final

from tests.harness import binaries, paths, processes
from tests.harness.api import Api
from tests.harness.cluster import Cluster
from tests.harness.controlplane import ControlPlane
from tests.harness.errors import HarnessError
from tests.harness.pki import Authority
from tests.harness.run import Figures, command

_READY_LIMIT_S: Final = 60.0
_CAPACITY: Final = {
    "cpu": "100000",
    "memory": "1000Ti",
    "pods": "100000",
    "nvidia.com/gpu": "100000",
}


def add(cluster: Cluster, count: int) -> None:
    """Add fake nodes with room for any number of pods, and wait until they are ready.

    kwok shows a pod as running as soon as it is bound, and removes it as soon as it is deleted.
    All pod addresses are local to this machine, so that one process can answer for all agents.

    Raises:
        HarnessError: The cluster has real nodes, or a process ended or took too long.
    """
    if cluster.nodes:
        raise HarnessError("Fake nodes need a cluster without real nodes.")
    tools = binaries.for_fake_nodes(Figures(quiet=True))
    route = ["ip", "route", "add", "local", paths.FAKE_POD_NETWORK, "dev", paths.BRIDGE]
    command(route, "Adding the route of fake pods")
    authority = Authority(paths.STATE / "pki")
    plane = ControlPlane(tools, authority, 0)
    plane.start_scheduler()
    plane.start_kwok()
    for number in range(count):
        plane.api.create("/api/v1/nodes", _node(f"fake-{number:03d}"))
        # Without a node controller nothing else removes the taint of a new node.
        cluster.kubectl("taint", "node", f"fake-{number:03d}", "node.kubernetes.io/not-ready-")
    processes.wait_for(
        "the fake nodes",
        lambda: all(_is_ready(plane.api, f"fake-{number:03d}") for number in range(count)),
        deadline_s=_READY_LIMIT_S,
        needs=("kwok",),
    )


def _node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": _CAPACITY, "allocatable": _CAPACITY},
    }


def _is_ready(api: Api, name: str) -> bool:
    node = api.get(f"/api/v1/nodes/{name}") or {}
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
