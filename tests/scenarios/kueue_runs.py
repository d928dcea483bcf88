"""Random disturbances of a job under Kueue, and what must hold in each run.

The same runs happen in memory (tests/operator) and on a real API server (tests/api).
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddp_operator.builders.gangs.kueue import GROUP
from ddp_operator.reconcile.escalation import STALLED_LIMIT
from ddp_wire.messages import AgentPhase
from tests.scenarios.kueue import GATE, Kueue, Stop, is_gated, workload_of
from tests.scenarios.pods import TERMINAL, EndContainer, Script, ScriptedPods

Manifest = dict[str, Any]

QUEUE = "team"
MOST_ATTEMPTS = 2000
_GATED_CHANCE = 0.1
"""Probability that somebody deletes a pod that Kueue holds, per second."""
SPECS: dict[str, dict[str, Any]] = {
    "fixed size": {"nodes": 3},
    "base and extras": {
        "nodes": 4,
        "elastic": {
            "minNodes": 2,
            "startWaitSeconds": 3,
            "shrinkAfterSeconds": 2,
            "growAfterSeconds": 5,
        },
    },
    "with a spare": {"nodes": 2, "spares": 1},
}
"""Specs of the disturbed jobs."""


def job_spec(name: str) -> dict[str, Any]:
    """Return the spec of a job that survives any number of losses."""
    return {
        **SPECS[name],
        "gang": {"type": "Kueue", "queue": QUEUE},
        "checkpoint": {"claimName": "shared"},
        "maxInfrastructureRestarts": 10_000,
    }


def script() -> Script:
    """Return a script in which each attempt saves, and trains until it is told to finish."""
    saves = {attempt: 10 * attempt for attempt in range(1, MOST_ATTEMPTS)}
    return Script(saves=saves, training_seconds=1_000_000)


@dataclass(frozen=True)
class Delete:
    """A disturbance: somebody deletes a pod."""

    pod: Manifest


@dataclass(frozen=True)
class LoseNode:
    """A disturbance: the Kubernetes node of a pod is lost, so no kubelet reports the pod's end.

    Kubernetes deletes the pod at once, and marks it as failed when an administrator or the cloud
    provider removes the node.
    """

    pod: Manifest
    seconds: int
    """Seconds until the node is removed."""


LOST_NODE = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
"""Condition of a pod that Kubernetes deletes because its node is lost."""

_LOSSES = ("kill", "delete", "lose a node")
_ENDS = ("evict", "evict one", "stop the queue")

Disturbance = EndContainer | Delete | LoseNode | Stop


class Disturber:
    """Source of random disturbances: lost pods, evictions and a stopped queue."""

    def __init__(self, seed: int, number: int, kueue: Kueue, scripted: ScriptedPods) -> None:
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._kueue, self._scripted = kueue, scripted
        self._left, self._stopped_for = number, 0
        self._unsaved = 0
        """Number of pods lost since ranks trained, and so saved."""
        self.done: Counter[str] = Counter()
        """Number of disturbances by kind."""

    @property
    def is_over(self) -> bool:
        """Whether all disturbances have happened and the queue admits again."""
        return not self._left and not self._stopped_for

    def step(self, pods: Sequence[Manifest]) -> list[Disturbance]:
        """Return the disturbances of one second."""
        if self._stopped_for:
            self._stopped_for -= 1
            self._kueue.stopped = bool(self._stopped_for)
        gated = [pod for pod in pods if is_gated(pod) and not _is_deleting(pod)]
        if gated and self._left and self._random.random() < _GATED_CHANCE:
            return self._counted("delete a gated pod", [Delete(self._random.choice(gated))])
        running = [pod for pod in pods if _runs(pod)]
        # Most disturbances hit a job that trains, and some hit one that is recovering.
        chance = 0.5 if len(running) == len(pods) else 0.1
        if self._stopped_for or not self._left or not running or self._random.random() > chance:
            return []
        if any(agent.phase is AgentPhase.TRAINING for agent in self._scripted.agents.values()):
            self._unsaved = 0
        # A job fails after three lost pods in a row without a saved step.
        kind = self._random.choice(
            [*(_LOSSES if self._unsaved < STALLED_LIMIT - 1 else ()), *_ENDS]
        )
        self._unsaved += kind in _LOSSES
        return self._counted(kind, self._disturbance(kind, running, pods))

    def _counted(self, kind: str, found: list[Disturbance]) -> list[Disturbance]:
        if found:
            self._left -= 1
            self.done[kind] += 1
        return found

    def _disturbance(
        self, kind: str, running: Sequence[Manifest], pods: Sequence[Manifest]
    ) -> list[Disturbance]:
        pod = self._random.choice(running)
        name = workload_of(pod)
        if kind == "kill":
            return [self._scripted.kill(pod)]
        if kind == "delete":
            return [Delete(pod)]
        if kind == "lose a node":
            self._scripted.agents.pop(pod["metadata"]["uid"], None)
            return [LoseNode(pod, self._random.randint(5, 40))]
        workload = self._kueue.workloads.get(name)
        if workload is None or not workload.admitted:
            return []
        if kind == "evict":
            return [*self._kueue.evict(name, pods, "Preempted")]
        if kind == "evict one":
            alone = GROUP not in pod["metadata"]["labels"]
            return [*self._kueue.evict(name, pods, "Preempted")] if alone else []
        self._kueue.stopped, self._stopped_for = True, self._random.randint(2, 8)
        admitted = [w.name for w in self._kueue.workloads.values() if w.admitted]
        moves: list[Disturbance] = []
        for one in admitted:
            moves += self._kueue.evict(one, pods, "ClusterQueueStopped")
        return moves


def broken_rules(pods: Sequence[Manifest]) -> list[str]:
    """Return a message for each rule of groups that the pods break."""
    living: Counter[str] = Counter()
    for pod in pods:
        if GROUP in pod["metadata"]["labels"] and pod["status"]["phase"] not in TERMINAL:
            living[workload_of(pod)] += "nodeName" in pod["spec"] or not _is_deleting(pod)
    sizes = {
        workload_of(pod): int(pod["metadata"]["annotations"][f"{_PREFIX}pod-group-total-count"])
        for pod in pods
        if GROUP in pod["metadata"]["labels"]
    }
    return [
        f"{name} has {count} living pods of {sizes[name]}"
        for name, count in living.items()
        if count > sizes[name]
    ]


_PREFIX = GATE["name"].partition("/")[0] + "/"


def _runs(pod: Manifest) -> bool:
    running = pod["status"]["phase"] == "Running" and not is_gated(pod)
    return running and not _is_deleting(pod)


def _is_deleting(pod: Manifest) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None
