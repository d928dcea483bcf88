"""Faults that tests inject into a gang. Each returns its time in Unix seconds of this machine."""

import os
import signal
import subprocess
import sys
import time
from typing import Any, Protocol

from ddp_wire.messages import Heartbeat
from tests.fault_player.containers import control_group, memory_kills, processes
from tests.harness.cluster import Cluster
from tests.harness.install import eventually

JSON = dict[str, Any]

_ALLOCATOR = """
import os, pathlib, sys, time
(pathlib.Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
buffers = []
while True:
    buffers.append(bytearray(4 << 20))
    time.sleep(0.002)
"""
"""Program that allocates memory in a control group, slowly, so that the kernel kills once."""

_OOM_LIMIT_SECONDS = 60.0


class Gang(Protocol):
    """Ranks in pods that a DDPJob or torchrun runs."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of the pods."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace of the pods."""
        ...

    def pods(self) -> list[JSON]:
        """Return the pods."""
        ...

    def heartbeats(self) -> list[tuple[JSON, Heartbeat]]:
        """Return the newest known heartbeat of each rank, with its pod."""
        ...


def rank_process(gang: Gang, rank: int) -> int:
    """Return the process id of a rank on this machine.

    Raises:
        LookupError: The rank does not run.
    """
    for pod, heartbeat in gang.heartbeats():
        found = processes(pod) if heartbeat.rank == rank else {}
        if heartbeat.pid in found:
            return found[heartbeat.pid]
    raise LookupError(f"rank {rank} is not running")


def kill_rank(gang: Gang, rank: int) -> float:
    """Kill one rank with SIGKILL.

    Raises:
        LookupError: The rank does not run.
    """
    os.kill(rank_process(gang, rank), signal.SIGKILL)
    return time.time()


def delete_pod(gang: Gang, name: str) -> float:
    """Delete a pod without a grace period."""
    started = time.time()
    gang.cluster.kubectl(
        "-n", gang.namespace, "delete", "pod", name,
        "--grace-period=0", "--force", "--wait=false", "--ignore-not-found",
    )  # fmt: skip
    return started


def kill_container(pod: JSON, container: str) -> float:
    """Kill the first process of a container with SIGKILL, and with it all others.

    Raises:
        LookupError: The container does not run.
    """
    os.kill(processes(pod, container)[1], signal.SIGKILL)
    return time.time()


def exhaust_memory(pod: JSON) -> float:
    """Use up a pod's memory until the kernel kills one of the pod's processes.

    A process of the test joins the worker's control group and allocates memory. The kernel
    prefers the pod's processes, because the kubelet raises their oom_score_adj. The test
    ends its process afterwards.

    Returns:
        Time of the kernel's kill.
    """
    folder = control_group(pod)
    before = memory_kills(folder)
    killed_at: list[float] = []

    def killed() -> bool:
        if memory_kills(folder) > before:
            killed_at.append(time.time())
        return bool(killed_at)

    with subprocess.Popen([sys.executable, "-c", _ALLOCATOR, str(folder)]) as allocator:
        try:
            eventually(killed, "the kernel kills a process", _OOM_LIMIT_SECONDS, every=0.005)
        finally:
            allocator.kill()
    return killed_at[0]


def lose_node(cluster: Cluster, name: str) -> float:
    """Cut a node off and kill its kubelet and containers, so that no process reports the loss."""
    node = cluster.node(name)
    node.cut_off()
    started = time.time()
    node.kill_kubelet()
    node.kill_containers()
    return started


def restore_node(cluster: Cluster, name: str) -> None:
    """Start a lost node again, and wait until it is empty and schedulable."""
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
    eventually(
        lambda: not cluster.kubectl(*leftover).stdout.strip(), f"no pod is left on {name}", 120
    )
