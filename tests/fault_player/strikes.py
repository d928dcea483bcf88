"""The faults: what is done to a gang, and when exactly, in Unix seconds of this machine's clock."""

import os
import signal
import subprocess
import sys
import time
from typing import Any, Protocol

from ddp_wire.contract import Beat
from tests.fault_player.containers import group, memory_kills, processes
from tests.harness.cluster import Cluster
from tests.tools.install import eventually

JSON = dict[str, Any]

_HOG = """
import os, pathlib, sys, time
(pathlib.Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
hoard = []
while True:
    hoard.append(bytearray(4 << 20))
    time.sleep(0.002)
"""
"""Eats the memory of a control group, slowly enough to be stopped once the kernel has struck."""

_OOM_LIMIT_SECONDS = 60.0


class Gang(Protocol):
    """Ranks in pods, whoever runs them."""

    @property
    def cluster(self) -> Cluster:
        """Where they run."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of the pods."""
        ...

    def pods(self) -> list[JSON]:
        """The pods."""
        ...

    def beats(self) -> list[tuple[JSON, Beat]]:
        """The newest beat of each rank that is known of, with its pod."""
        ...


def rank_process(gang: Gang, rank: int) -> int:
    """Process id, on this machine, of a rank.

    Raises:
        LookupError: It does not run.
    """
    for pod, beat in gang.beats():
        found = processes(pod) if beat.rank == rank else {}
        if beat.pid in found:
            return found[beat.pid]
    raise LookupError(f"rank {rank} does not run")


def kill_rank(gang: Gang, rank: int) -> float:
    """SIGKILL to one rank.

    Raises:
        LookupError: It does not run.
    """
    os.kill(rank_process(gang, rank), signal.SIGKILL)
    return time.time()


def delete_pod(gang: Gang, name: str) -> float:
    """Delete a pod without grace."""
    began = time.time()
    gang.cluster.kubectl(
        "-n", gang.namespace, "delete", "pod", name,
        "--grace-period=0", "--force", "--wait=false", "--ignore-not-found",
    )  # fmt: skip
    return began


def kill_container(pod: JSON, container: str) -> float:
    """SIGKILL to the first process of a container, and with it to all others.

    Raises:
        LookupError: It does not run.
    """
    os.kill(processes(pod, container)[1], signal.SIGKILL)
    return time.time()


def exhaust_memory(pod: JSON) -> float:
    """Use up a pod's memory until the kernel ends one of its processes: which one is its choice.

    A process of the test's own joins the worker's control group and allocates. The kernel prefers
    the pod's processes, whose score the kubelet has raised; once it has struck, that one goes too.

    Returns:
        When the kernel struck.
    """
    folder = group(pod)
    before = memory_kills(folder)
    struck: list[float] = []

    def killed() -> bool:
        if memory_kills(folder) > before:
            struck.append(time.time())
        return bool(struck)

    with subprocess.Popen([sys.executable, "-c", _HOG, str(folder)]) as hog:
        try:
            eventually(killed, "the kernel ends a process", _OOM_LIMIT_SECONDS, every=0.005)
        finally:
            hog.kill()
    return struck[0]


def lose_node(cluster: Cluster, name: str) -> float:
    """A node is gone from one moment to the next, and nobody hears of it."""
    node = cluster.node(name)
    node.cut_off()
    began = time.time()
    node.kill_kubelet()
    node.kill_containers()
    return began


def bring_back(cluster: Cluster, name: str) -> None:
    """The node is back, empty, and takes pods again."""
    cluster.node(name).start_kubelet()

    def usable() -> bool:
        form = "{.spec.taints}{.status.conditions[?(@.type=='Ready')].status}"
        found = cluster.kubectl("get", "node", name, "--ignore-not-found", "-o", f"jsonpath={form}")
        return found.stdout == "True"

    eventually(usable, f"{name} is back", 120)
    leftover = (
        "get", "pods", "-A", f"--field-selector=spec.nodeName={name}",
        "-o", "jsonpath={.items[*].metadata.deletionTimestamp}",
    )  # fmt: skip
    eventually(lambda: not cluster.kubectl(*leftover).stdout.strip(), f"{name} is tidy", 120)
