"""A small world around the controller: kubelets, agents, a clock, and a controller that may die.

Every step is a second: the controller looks until it has nothing left to write, then pods move.
"""

import itertools
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_wire import contract
from tests.operator.fake_cluster import FakeCluster, Killed
from tests.operator.support import DEFAULTS, NOW
from tests.scenarios.flows import NAME, Flow, timeless
from tests.scenarios.pods import (
    TERMINAL,
    End,
    Move,
    PlayedPods,
    Say,
    ended_status,
    running_status,
)

KEY = ("team-a", NAME)


class Simulation:
    """One job from its creation to its end."""

    def __init__(self, flow: Flow, *, writes_per_life: int = 0) -> None:
        """With `writes_per_life`, each controller dies after that many writes."""
        self._flow, self._writes_per_life = flow, writes_per_life
        self.cluster, self.now = FakeCluster(), NOW
        self.cluster.after_write = self._check
        self.cluster.apply(flow.job())
        self._played = PlayedPods(flow.script)
        self.cluster.agents = self._played.agents
        self.deaths = 0
        self._start_controller()

    async def run(self, *, seconds: int = 60) -> None:
        """Let the run come to its end."""
        for second in range(seconds):
            await self._settle()
            job = self.cluster.jobs.get(KEY)
            if self._flow.over(job, lives=bool(self.cluster.living())):
                return
            if job is not None and second in self._flow.script.edits:
                changed = {**job["spec"], **self._flow.script.edits[second]}
                job = self.cluster.apply({**job, "spec": changed})
            nodes = job["spec"]["nodes"] if job is not None else 0
            for move in self._played.step(self.cluster.pods(), nodes, self.now):
                self._carry_out(move)
            self.now += timedelta(seconds=1)
        raise AssertionError(f"not at its end after {seconds} s: {self.outcome()}")

    def outcome(self) -> Any:
        """The last status that was written, without times, and what is left in the cluster."""
        return (
            timeless(self.cluster.statuses[-1]),
            sorted(p["metadata"]["name"] for p in self.cluster.pods()),
            len(self.cluster.children["Service"]),
            KEY in self.cluster.jobs,
        )

    def _carry_out(self, move: Move) -> None:
        name = move.pod["metadata"]["name"]
        if isinstance(move, Say):
            self.cluster.change_pod(name, **running_status("10.0.0.1", ready=move.ready))
        elif isinstance(move, End):
            self.cluster.change_pod(name, **ended_status(move.code, move.word))
        else:
            self.cluster.remove_pod(name)

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
