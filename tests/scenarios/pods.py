"""What pods and their agents do, a second at a time, by a script.

Decides only; whoever plays it carries the moves out, in memory or on a real API server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ddp_operator.cluster.base import Manifest
from ddp_wire import contract
from ddp_wire.contract import AgentPhase, AgentStatus, CheckpointInfo, ExitCode, Failure, Progress

TERMINAL = {"Succeeded", "Failed"}
TRAINING_STEPS = 3
"""Seconds that an attempt trains before it succeeds."""
_KILLED = 137


@dataclass(frozen=True)
class Script:
    """What goes wrong, by attempt and node."""

    falls: dict[tuple[int, int], Failure] = field(default_factory=dict)
    """Ranks that fall once all train."""
    dies: frozenset[tuple[int, int]] = frozenset()
    """Containers that are killed once all train."""
    saves: dict[int, int] = field(default_factory=dict)
    """Steps that are saved, by attempt, once all train."""
    edits: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What a user changes in the spec, by second."""


@dataclass(frozen=True)
class Say:
    """The pod runs, and its agent says something."""

    pod: Manifest
    word: AgentStatus

    @property
    def ready(self) -> bool:
        """What the kubelet's probe finds."""
        return self.word.phase is AgentPhase.TRAINING


@dataclass(frozen=True)
class End:
    """The worker container ends with a code and its agent's last word, if it has one."""

    pod: Manifest
    code: int
    word: AgentStatus | None


@dataclass(frozen=True)
class Remove:
    """The pod is gone for good."""

    pod: Manifest


Move = Say | End | Remove


class PlayedPods:
    """The pods of one job. They survive the controller."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._trained: dict[int, int] = {}
        self.agents: dict[str, AgentStatus] = {}
        """The newest word of each living agent, by pod uid."""

    def step(self, pods: Iterable[Manifest], nodes: int, now: datetime) -> list[Move]:
        """What the living among these pods of a job of so many nodes do in this second."""
        living = [pod for pod in pods if pod["status"]["phase"] not in TERMINAL]
        moves = [move for pod in living if (move := self._move(pod, now)) is not None]
        gone = {move.pod["metadata"]["uid"] for move in moves if not isinstance(move, Say)}
        left = [pod for pod in living if pod["metadata"]["uid"] not in gone]
        return moves + self._form(left, nodes, now)

    def _move(self, pod: Manifest, now: datetime) -> Move | None:
        metadata = pod["metadata"]
        order = metadata["annotations"][contract.ANNOTATION_ATTEMPT]
        agent = self.agents.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self.agents.pop(metadata["uid"], None)
            return Remove(pod)
        if order == contract.ATTEMPT_STOP:
            return self._end(pod, agent, ExitCode.PREEMPTED)
        if agent is None or int(order) > agent.attempt:
            return self._say(pod, int(order), AgentPhase.STARTING, now)
        return self._train(pod, agent, now) if agent.phase is AgentPhase.TRAINING else None

    def _train(self, pod: Manifest, agent: AgentStatus, now: datetime) -> Move | None:
        place, script = (agent.attempt, agent.node_index), self._script
        if place in script.dies:
            return self._end(pod, None, _KILLED)
        if place in script.falls:
            return self._say(pod, agent.attempt, AgentPhase.FAILED, now, script.falls[place])
        if any(attempt == agent.attempt for attempt, _ in (*script.falls, *script.dies)):
            gone = Failure(attempt=agent.attempt, at=now.timestamp(), rank=9, secondary=True)
            return self._say(pod, agent.attempt, AgentPhase.FAILED, now, gone)
        if self._trained.get(agent.attempt, 0) < TRAINING_STEPS:
            return None
        done = Progress(step=100, total_steps=100)
        final = agent.model_copy(update={"phase": AgentPhase.SUCCEEDED, "progress": done})
        return self._end(pod, final, ExitCode.OK)

    def _form(self, pods: Sequence[Manifest], nodes: int, now: datetime) -> list[Move]:
        """All agents of one attempt that start together train together."""
        present = [a for p in pods if (a := self.agents.get(p["metadata"]["uid"])) is not None]
        attempts = {a.attempt for a in present}
        if len(present) != nodes or len(attempts) != 1:
            return []
        attempt = attempts.pop()
        phases = {a.phase for a in present}
        if phases == {AgentPhase.STARTING}:
            return [self._say(pod, attempt, AgentPhase.TRAINING, now) for pod in pods]
        if phases == {AgentPhase.TRAINING}:
            self._trained[attempt] = self._trained.get(attempt, 0) + 1
        return []

    def _say(
        self,
        pod: Manifest,
        attempt: int,
        phase: AgentPhase,
        now: datetime,
        failure: Failure | None = None,
    ) -> Say:
        index = int(pod["metadata"]["labels"][contract.LABEL_NODE_INDEX])
        told = index == 0 and phase is AgentPhase.TRAINING
        step = self._script.saves.get(attempt) if told else None
        word = AgentStatus(
            node_index=index,
            attempt=attempt,
            phase=phase,
            since=now.timestamp(),
            failure=failure,
            checkpoint=step and CheckpointInfo(step=step, path="/checkpoints/a", at=0.0),
        )
        self.agents[pod["metadata"]["uid"]] = word
        return Say(pod, word)

    def _end(self, pod: Manifest, final: AgentStatus | None, code: int) -> End:
        self.agents.pop(pod["metadata"]["uid"], None)
        return End(pod, int(code), final)


def running_status(address: str, *, ready: bool) -> Manifest:
    """Status of a pod that runs."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"phase": "Running", "podIP": address, "conditions": conditions}


def ended_status(code: int, word: AgentStatus | None, reason: str = "") -> Manifest:
    """Status of a pod whose worker has ended."""
    terminated = {"exitCode": code, "message": word.to_json() if word else "", "reason": reason}
    worker = {"name": contract.WORKER_CONTAINER, "state": {"terminated": terminated}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "conditions": [], "containerStatuses": [worker]}
