"""Scripted behaviour of pods and their agents, one second at a time.

`ScriptedPods` only decides. Its caller applies the moves, in memory or on a real API server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ddp_operator.cluster.base import Manifest
from ddp_wire import contract
from ddp_wire.contract import ExitCode
from ddp_wire.messages import AgentPhase, AgentStatus, CheckpointInfo, Failure, Progress
from ddp_wire.orders import Order, order_from_text

TERMINAL = {"Succeeded", "Failed"}
"""Pod phases in which all containers have ended."""
TRAINING_SECONDS = 3
"""Seconds that an attempt trains before it succeeds."""
_KILLED = 137
"""Exit code of a container that got SIGKILL."""


@dataclass(frozen=True)
class Script:
    """Faults and other events of a run, by (attempt, node) or by attempt."""

    failures: dict[tuple[int, int], Failure] = field(default_factory=dict)
    """Ranks that fail after all ranks train."""
    kills: frozenset[tuple[int, int]] = frozenset()
    """Containers that are killed once all ranks train."""
    saves: dict[int, int] = field(default_factory=dict)
    """Steps that are saved once all ranks train, by attempt."""
    edits: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Changes that a user makes to the spec, by second."""
    outages: dict[int, tuple[int, int]] = field(default_factory=dict)
    """First and last second in which the new pod of a node gets no Kubernetes node, by node."""
    failed_tries: frozenset[str] = frozenset()
    """Names of the pods of init steps that fail."""
    training_seconds: int = TRAINING_SECONDS
    """Seconds that an attempt trains before it succeeds."""


@dataclass(frozen=True)
class ReportStatus:
    """A move: the pod runs and its agent reports a status."""

    pod: Manifest
    status: AgentStatus

    @property
    def ready(self) -> bool:
        """Return whether the kubelet's readiness probe succeeds."""
        return self.status.phase is AgentPhase.TRAINING


@dataclass(frozen=True)
class EndContainer:
    """A move: the worker container ends, with its agent's final status if there is one."""

    pod: Manifest
    code: int
    status: AgentStatus | None


@dataclass(frozen=True)
class RemovePod:
    """A move: the pod object is removed."""

    pod: Manifest


Move = ReportStatus | EndContainer | RemovePod


class ScriptedPods:
    """The pods of one job. They survive the controller."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._trained: dict[int, int] = {}
        self._second = -1
        self.agents: dict[str, AgentStatus] = {}
        """Newest status of each live agent, by pod uid."""

    def step(self, pods: Iterable[Manifest], nodes: int, now: datetime) -> list[Move]:
        """Return the moves of one second, for the pods of a job with this many nodes."""
        self._second += 1
        live = [pod for pod in pods if pod["status"]["phase"] not in TERMINAL]
        moves = [move for pod in live if (move := self._move(pod, now)) is not None]
        ended = {m.pod["metadata"]["uid"] for m in moves if not isinstance(m, ReportStatus)}
        remaining = [pod for pod in live if pod["metadata"]["uid"] not in ended]
        return moves + self._form_gang(remaining, nodes, now)

    def kill(self, pod: Manifest) -> EndContainer:
        """Return the move that kills the worker container of a pod."""
        return self._end(pod, None, _KILLED)

    def finish_after(self, seconds: int) -> None:
        """Let the attempts that train succeed after some seconds of training."""
        self._script = replace(self._script, training_seconds=seconds)

    def _move(self, pod: Manifest, now: datetime) -> Move | None:
        metadata = pod["metadata"]
        if contract.LABEL_INIT_STEP in metadata["labels"]:
            if "deletionTimestamp" in metadata:
                return RemovePod(pod)
            return self._end(pod, None, int(metadata["name"] in self._script.failed_tries))
        if pod["spec"].get("schedulingGates"):
            return None
        text = metadata["annotations"][contract.ANNOTATION_ATTEMPT]
        agent = self.agents.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self.agents.pop(metadata["uid"], None)
            return RemovePod(pod)
        if text == contract.ATTEMPT_STOP:
            return self._end(pod, agent, ExitCode.PREEMPTED)
        if agent is None and self._has_no_place(pod):
            return None
        order = order_of(pod)
        if agent is None or order.attempt > agent.attempt:
            trains = order.members is None or node_of(pod) in order.members
            phase = AgentPhase.STARTING if trains else AgentPhase.WAITING
            return self._report(pod, order.attempt, phase, now)
        return self._train(pod, agent, now) if agent.phase is AgentPhase.TRAINING else None

    def _has_no_place(self, pod: Manifest) -> bool:
        first, last = self._script.outages.get(node_of(pod), (0, 0))
        return first <= self._second < last

    def _train(self, pod: Manifest, agent: AgentStatus, now: datetime) -> Move | None:
        key, script = (agent.attempt, agent.node_index), self._script
        if key in script.kills:
            return self._end(pod, None, _KILLED)
        if key in script.failures:
            return self._report(pod, agent.attempt, AgentPhase.FAILED, now, script.failures[key])
        if any(attempt == agent.attempt for attempt, _ in (*script.failures, *script.kills)):
            lost_peer = Failure(attempt=agent.attempt, at=now.timestamp(), rank=9, secondary=True)
            return self._report(pod, agent.attempt, AgentPhase.FAILED, now, lost_peer)
        if self._trained.get(agent.attempt, 0) < script.training_seconds:
            return None
        done = Progress(step=100, total_steps=100)
        final = agent.model_copy(update={"phase": AgentPhase.SUCCEEDED, "progress": done})
        return self._end(pod, final, ExitCode.OK)

    def _form_gang(self, pods: Sequence[Manifest], nodes: int, now: datetime) -> list[Move]:
        """Let all agents of one attempt change from Starting to Training together."""
        ordered = ((p["metadata"]["uid"], p) for p in pods)
        known = {uid: order_of(p) for uid, p in ordered if uid in self.agents}
        attempt = max((order.attempt for order in known.values()), default=0)
        members = next((o.members for o in known.values() if o.attempt == attempt), None)
        members = frozenset(range(nodes)) if members is None else members
        pods = [p for p in pods if p["metadata"]["uid"] in known and node_of(p) in members]
        present = [self.agents[p["metadata"]["uid"]] for p in pods]
        if len(present) != len(members) or {a.attempt for a in present} != {attempt}:
            return []
        phases = {a.phase for a in present}
        if phases == {AgentPhase.STARTING}:
            return [self._report(pod, attempt, AgentPhase.TRAINING, now) for pod in pods]
        if phases == {AgentPhase.TRAINING}:
            self._trained[attempt] = self._trained.get(attempt, 0) + 1
        return []

    def _report(
        self,
        pod: Manifest,
        attempt: int,
        phase: AgentPhase,
        now: datetime,
        failure: Failure | None = None,
    ) -> ReportStatus:
        index, members = node_of(pod), order_of(pod).members
        has_rank_0 = index == (0 if members is None else min(members))
        reports_checkpoint = has_rank_0 and phase is AgentPhase.TRAINING
        step = self._script.saves.get(attempt) if reports_checkpoint else None
        status = AgentStatus(
            node_index=index,
            attempt=attempt,
            phase=phase,
            warm=True,
            since=now.timestamp(),
            failure=failure,
            checkpoint=step and CheckpointInfo(step=step, path="/checkpoints/a", at=0.0),
        )
        self.agents[pod["metadata"]["uid"]] = status
        return ReportStatus(pod, status)

    def _end(self, pod: Manifest, final: AgentStatus | None, code: int) -> EndContainer:
        self.agents.pop(pod["metadata"]["uid"], None)
        return EndContainer(pod, int(code), final)


def node_of(pod: Manifest) -> int:
    """Return the number of the pod's node within the job."""
    return int(pod["metadata"]["labels"][contract.LABEL_NODE_INDEX])


def order_of(pod: Manifest) -> Order:
    """Return the order in the annotation of a pod. The annotation must not be `stop`."""
    text = pod["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
    order = order_from_text(text)
    assert order is not None, f"an attempt annotation must hold an order, got {text!r}"
    return order


def running_status(address: str, *, ready: bool) -> Manifest:
    """Return the status of a running pod."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"phase": "Running", "podIP": address, "conditions": conditions}


def ended_status(code: int, final: AgentStatus | None, reason: str = "") -> Manifest:
    """Return the status of a pod whose worker container has ended."""
    terminated = {"exitCode": code, "message": final.to_json() if final else "", "reason": reason}
    worker = {"name": contract.WORKER_CONTAINER, "state": {"terminated": terminated}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "conditions": [], "containerStatuses": [worker]}
