"""The faults whose recovery is measured, and what is asked of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.gangs import RANKS, SetUp
from tests.fault_player import strikes

JSON = dict[str, Any]

LOST_NODE = "node-2"


@dataclass(frozen=True)
class Case:
    """A fault and what is asked of its recovery."""

    name: str
    goal_seconds: float
    """p95 for ours on two cores: from the fault, or from detection where that is Kubernetes'."""
    strike: Callable[[SetUp, random.Random], float]
    """Does it, and returns when, in Unix seconds."""
    lost_node: str | None = None
    """The node that the fault takes."""
    detection_seconds: float = 0.0
    """How long Kubernetes may take to notice."""

    @property
    def fresh(self) -> bool:
        """Whether each repeat needs a set-up of its own: pods do not move back to a node."""
        return self.lost_node is not None

    def doomed(self, gang: SetUp) -> list[JSON]:
        """The pods on the node that is lost."""
        if self.lost_node is None:
            return []
        return [pod for pod in gang.pods() if pod["spec"].get("nodeName") == self.lost_node]

    def playable(self, gang: SetUp) -> bool:
        """Whether the fault takes exactly one of the pods."""
        return self.lost_node is None or len(self.doomed(gang)) == 1

    def mend(self, gang: SetUp) -> None:
        """Bring back what the fault took from the cluster."""
        if self.lost_node is not None:
            strikes.bring_back(gang.cluster, self.lost_node)


def strike_rank(gang: SetUp, chance: random.Random) -> float:
    """SIGKILL to a random rank."""
    return strikes.kill_rank(gang, chance.randrange(RANKS))


def strike_pod(gang: SetUp, chance: random.Random) -> float:
    """Delete a random pod, rank 0's included, without grace."""
    names = sorted(pod["metadata"]["name"] for pod in gang.pods())
    return strikes.delete_pod(gang, chance.choice(names))


def strike_memory(gang: SetUp, chance: random.Random) -> float:
    """Let a random pod run into its memory limit."""
    pods = sorted(gang.pods(), key=lambda pod: str(pod["metadata"]["name"]))
    return strikes.exhaust_memory(chance.choice(pods))


def strike_node(gang: SetUp, chance: random.Random) -> float:
    """Take a node with one of the pods: silent, unreachable, its kubelet and containers dead."""
    del chance
    return strikes.lose_node(gang.cluster, LOST_NODE)


CASES = (
    Case("rank crash", 4.0, strike_rank),
    Case("pod kill", 8.0, strike_pod),
    Case("out of memory", 8.0, strike_memory),
    Case("node lost", 10.0, strike_node, lost_node=LOST_NODE, detection_seconds=30.0),
)
