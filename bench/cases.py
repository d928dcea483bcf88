"""The faults whose recovery is measured, with their goals."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.gangs import RANKS, MeasuredGang
from tests.fault_player import faults

JSON = dict[str, Any]

LOST_NODE = "node-2"


@dataclass(frozen=True)
class Case:
    """A fault with the goal for its recovery."""

    name: str
    goal_seconds: float
    """Goal for the recovery of a DDPJob: p95 in seconds on two cores. For a lost node it counts
    from the detection by Kubernetes, otherwise from the fault."""
    inject: Callable[[MeasuredGang, random.Random], float]
    """Injects the fault and returns its time in Unix seconds."""
    lost_node: str | None = None
    """The Kubernetes node that the fault takes."""
    detection_seconds: float = 0.0
    """Maximum seconds until Kubernetes detects the loss."""
    has_spare: bool = False
    """Whether the DDPJob has a spare pod."""

    @property
    def needs_new_setup(self) -> bool:
        """Whether each repeat needs new pods, because pods do not move back to a restored node."""
        return self.lost_node is not None

    def pods_on_lost_node(self, gang: MeasuredGang) -> list[JSON]:
        """Return the pods on the lost node."""
        if self.lost_node is None:
            return []
        return [pod for pod in gang.pods() if pod["spec"].get("nodeName") == self.lost_node]

    def can_inject(self, gang: MeasuredGang) -> bool:
        """Return whether the fault takes exactly one of the pods."""
        return self.lost_node is None or len(self.pods_on_lost_node(gang)) == 1

    def restore(self, gang: MeasuredGang) -> None:
        """Restore what the fault took from the cluster."""
        if self.lost_node is not None:
            faults.restore_node(gang.cluster, self.lost_node)


def kill_random_rank(gang: MeasuredGang, rng: random.Random) -> float:
    """Kill a random rank with SIGKILL."""
    return faults.kill_rank(gang, rng.randrange(RANKS))


def delete_random_pod(gang: MeasuredGang, rng: random.Random) -> float:
    """Delete a random pod that runs ranks, without a grace period. It may be the pod of rank 0."""
    names = sorted({pod["metadata"]["name"] for pod, _ in gang.heartbeats()})
    return faults.delete_pod(gang, rng.choice(names))


def exhaust_random_pod(gang: MeasuredGang, rng: random.Random) -> float:
    """Let a random pod exceed its memory limit."""
    pods = sorted(gang.pods(), key=lambda pod: str(pod["metadata"]["name"]))
    return faults.exhaust_memory(rng.choice(pods))


def lose_one_node(gang: MeasuredGang, rng: random.Random) -> float:
    """Cut a node with a pod of the gang off the network, and kill its kubelet and containers."""
    del rng
    return faults.lose_node(gang.cluster, LOST_NODE)


CASES = (
    Case("rank crash", 4.0, kill_random_rank),
    Case("pod kill", 8.0, delete_random_pod),
    Case("pod kill, one spare", 2.5, delete_random_pod, has_spare=True),
    Case("out of memory", 8.0, exhaust_random_pod),
    Case("node lost", 10.0, lose_one_node, lost_node=LOST_NODE, detection_seconds=30.0),
)
