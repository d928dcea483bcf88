"""A small world around the controller: kubelets, agents, a clock, and a controller that may die.

Every step is a second: the controller looks until it has nothing left to write, then pods move.
"""

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ddp_agent import contract
from ddp_agent.contract import AgentPhase, AgentStatus, CheckpointInfo, Failure, Progress
from ddp_operator.cluster.base import Manifest
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from tests.unit.fake_cluster import TERMINAL, FakeCluster, Killed
from tests.unit.support import DEFAULTS, NOW

KEY = ("team-a", "digits")
TRAINING_STEPS = 3
"""Seconds that an attempt trains before it succeeds."""


@dataclass
class Script:
    """What goes wrong, by attempt and node."""

    falls: dict[tuple[int, int], Failure] = field(default_factory=dict)
    """Ranks that fall once all train."""
    dies: set[tuple[int, int]] = field(default_factory=set)
    """Containers that are killed once all train."""
    saves: dict[int, int] = field(default_factory=dict)
    """Steps that are saved, by attempt, once all train."""
    asked: dict[int, Callable[["Simulation"], None]] = field(default_factory=dict)
    """What a user does in a second."""


class Kubelets:
    """Runs pods and their agents, a step at a time. Survives the controller."""

    def __init__(self, cluster: FakeCluster, script: Script) -> None:
        self._cluster, self._script = cluster, script
        self._trained: dict[int, int] = {}

    def step(self, now: datetime) -> None:
        for pod in self._cluster.living():
            self._move(pod, now)
        self._form(now)

    def _move(self, pod: Manifest, now: datetime) -> None:
        metadata = pod["metadata"]
        name, order = metadata["name"], metadata["annotations"][contract.ANNOTATION_ATTEMPT]
        agent = self._cluster.agents.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self._cluster.remove_pod(name)
        elif order == contract.ATTEMPT_STOP:
            self._end(name, agent, 85)
        elif agent is None or int(order) > agent.attempt:
            self._say(name, int(order), AgentPhase.STARTING, now)
        elif agent.phase is AgentPhase.TRAINING:
            self._train(name, agent, now)

    def _train(self, name: str, agent: AgentStatus, now: datetime) -> None:
        place = (agent.attempt, agent.node_index)
        if place in self._script.dies:
            self._end(name, None, 137)
        elif place in self._script.falls:
            self._say(name, agent.attempt, AgentPhase.FAILED, now, self._script.falls[place])
        elif any(a == agent.attempt for a, _ in (*self._script.falls, *self._script.dies)):
            gone = Failure(attempt=agent.attempt, at=now.timestamp(), rank=9, secondary=True)
            self._say(name, agent.attempt, AgentPhase.FAILED, now, gone)
        elif self._trained.get(agent.attempt, 0) >= TRAINING_STEPS:
            done = Progress(step=100, total_steps=100)
            final = agent.model_copy(update={"phase": AgentPhase.SUCCEEDED, "progress": done})
            self._end(name, final, 0)

    def _form(self, now: datetime) -> None:
        """All agents of one attempt that start together train together."""
        pods = self._cluster.living()
        agents = [self._cluster.agents.get(p["metadata"]["uid"]) for p in pods]
        present = [a for a in agents if a is not None]
        nodes = self._cluster.jobs[KEY]["spec"]["nodes"] if KEY in self._cluster.jobs else 0
        attempts = {a.attempt for a in present}
        if len(present) != nodes or len(attempts) != 1:
            return
        attempt = attempts.pop()
        phases = {a.phase for a in present}
        if phases == {AgentPhase.STARTING}:
            for pod in pods:
                self._say(pod["metadata"]["name"], attempt, AgentPhase.TRAINING, now)
        elif phases == {AgentPhase.TRAINING}:
            self._trained[attempt] = self._trained.get(attempt, 0) + 1

    def _say(
        self,
        name: str,
        attempt: int,
        phase: AgentPhase,
        now: datetime,
        failure: Failure | None = None,
    ) -> None:
        ready = phase is AgentPhase.TRAINING
        conditions = [{"type": "Ready", "status": str(ready)}]
        pod = self._cluster.change_pod(
            name, phase="Running", podIP="10.0.0.1", conditions=conditions
        )
        index = int(pod["metadata"]["labels"][contract.LABEL_NODE_INDEX])
        step = self._script.saves.get(attempt) if index == 0 and ready else None
        self._cluster.agents[pod["metadata"]["uid"]] = AgentStatus(
            node_index=index,
            attempt=attempt,
            phase=phase,
            since=now.timestamp(),
            failure=failure,
            checkpoint=step and CheckpointInfo(step=step, path="/checkpoints/a", at=0.0),
        )

    def _end(self, name: str, final: AgentStatus | None, code: int) -> None:
        terminated = {"exitCode": code, "message": final.to_json() if final else ""}
        worker = {"name": contract.WORKER_CONTAINER, "state": {"terminated": terminated}}
        phase = "Failed" if code else "Succeeded"
        pod = self._cluster.change_pod(name, phase=phase, conditions=[], containerStatuses=[worker])
        self._cluster.agents.pop(pod["metadata"]["uid"], None)


class Simulation:
    """One job from its creation to its end."""

    def __init__(self, job: Manifest, script: Script, *, writes_per_life: int = 0) -> None:
        """With `writes_per_life`, each controller dies after that many writes."""
        self._writes_per_life = writes_per_life
        self.cluster, self.now = FakeCluster(), NOW
        self.cluster.after_write = self._check
        self.cluster.apply(job)
        self._script = script
        self._kubelets = Kubelets(self.cluster, script)
        self.deaths = 0
        self._start_controller()

    def edit(self, **spec: Any) -> None:
        """Change the job's spec as a user does."""
        job = self.cluster.jobs[KEY]
        self.cluster.apply({**job, "spec": {**job["spec"], **spec}})

    async def run(self, *, until: Callable[["Simulation"], bool], seconds: int = 60) -> None:
        for second in range(seconds):
            await self._settle()
            if until(self):
                return
            if second in self._script.asked:
                self._script.asked[second](self)
            self._kubelets.step(self.now)
            self.now += timedelta(seconds=1)
        raise AssertionError(f"not at its end after {seconds} s: {self.outcome()}")

    def outcome(self) -> Any:
        """The last status that was written, without times, and what is left in the cluster."""
        return (
            _timeless(self.cluster.statuses[-1]),
            sorted(p["metadata"]["name"] for p in self.cluster.pods()),
            len(self.cluster.children["Service"]),
            KEY in self.cluster.jobs,
        )

    def _start_controller(self) -> None:
        """A new process: it knows nothing but what it reads."""
        self.cluster.revive()
        if self._writes_per_life:
            self.cluster.kill_at(len(self.cluster.writes) + self._writes_per_life, after=True)
        cache = Cache()
        self._keys = cache.replace(self.cluster.snapshot())
        self.cluster.watching = cache
        self._controller = Controller(self.cluster, cache, DEFAULTS, lambda: self.now)

    async def _settle(self) -> None:
        for _ in range(20):
            before = len(self.cluster.writes)
            if not await self._survives(self._controller.reconcile(KEY)):
                continue
            if len(self.cluster.writes) == before:
                return
        raise AssertionError(f"the controller finds no rest: {self.cluster.writes[-20:]}")

    async def _survives(self, look: Awaitable[object]) -> bool:
        try:
            await look
        except Killed:
            self.deaths += 1
            self._start_controller()
            return False
        return True

    def _check(self) -> None:
        """What must hold after every single write."""
        places = [
            (p["metadata"]["labels"][contract.LABEL_JOB_UID], index)
            for p in self.cluster.living()
            if (index := p["metadata"]["labels"][contract.LABEL_NODE_INDEX])
        ]
        assert len(places) == len(set(places)), "two living pods of one node"
        attempts = [s.get("attempt", 0) for s in self.cluster.statuses]
        for before, after in itertools.pairwise(attempts):
            assert after - before in {0, 1}, "an attempt is skipped or taken back"
        for budget in ("restarts", "infrastructureRestarts", "freeRestarts"):
            spent = [s.get(budget, 0) for s in self.cluster.statuses]
            assert spent == sorted(spent), "a restart is taken back"
        newest = attempts[-1] if attempts else 0
        for pod in self.cluster.pods():
            told = pod["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
            assert told == contract.ATTEMPT_STOP or int(told) <= newest, "acted before it was said"
        assert {p["status"]["phase"] for p in self.cluster.pods()} <= TERMINAL | {
            "Pending",
            "Running",
        }


def _timeless(document: Any) -> Any:
    """The document without times, which depend on when the controller died."""
    if isinstance(document, dict):
        kept = {k: v for k, v in document.items() if not k.lower().endswith("time")}
        return {k: _timeless(v) for k, v in kept.items()}
    if isinstance(document, list):
        return sorted((_timeless(item) for item in document), key=json.dumps)
    return document
