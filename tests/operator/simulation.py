"""Simulation of a controller with kubelets, agents, a clock and controller crashes.

Each step is one second: the controller reconciles until it writes nothing more, then pods move.
"""

import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from ddp_operator.api.finished import CONFIG_MAP, read_finished
from ddp_operator.api.job import DDPJob
from ddp_operator.builders.defaults import Defaults
from ddp_operator.runtime.cache import Cache
from ddp_operator.runtime.controller import Controller
from ddp_operator.runtime.finished_jobs import FinishedJobs
from ddp_wire import contract, node_ranges
from tests.operator.direct_statuses import DirectStatuses
from tests.operator.fake_cluster import FakeCluster, Killed
from tests.operator.support import GUARDED, NOW
from tests.scenarios.flows import NAME, Flow, without_times
from tests.scenarios.pods import (
    TERMINAL,
    EndContainer,
    Move,
    ReportStatus,
    ScriptedPods,
    ended_status,
    order_of,
    running_status,
)

KEY = ("team-a", NAME)


class Simulation:
    """Run of one job from its creation to its end."""

    def __init__(
        self,
        flow: Flow,
        *,
        writes_per_life: int = 0,
        cluster: FakeCluster | None = None,
        defaults: Defaults = GUARDED,
        observe: Callable[[DDPJob], None] = lambda _: None,
    ) -> None:
        """Create a simulation. Each controller is killed after `writes_per_life` writes if set.

        The controllers call `observe` with the job whenever they read or write it.
        """
        self._observe = observe
        self._flow, self._writes_per_life, self._defaults = flow, writes_per_life, defaults
        self.cluster, self.now = cluster or FakeCluster(), NOW
        self.cluster.after_write = self._check
        self.cluster.apply(flow.job())
        self._pods = ScriptedPods(flow.script)
        self.cluster.agents = self._pods.agents
        self.deaths = 0
        self._start_controller()

    async def run(self, *, seconds: int = 60) -> None:
        """Run until the flow has ended."""
        for second in range(seconds):
            await self._settle()
            job = self.cluster.jobs.get(KEY)
            if self._flow.is_over(job, has_live_pods=bool(self.cluster.living())):
                return
            if job is not None and second in self._flow.script.edits:
                changed = {**job["spec"], **self._flow.script.edits[second]}
                job = self.cluster.apply({**job, "spec": changed})
            nodes = job["spec"]["nodes"] if job is not None else 0
            for move in self._pods.step(self.cluster.pods(), nodes, self.now):
                self._apply(move)
            self.now += timedelta(seconds=1)
        raise AssertionError(f"the run did not end within {seconds} s: {self.outcome()}")

    def outcome(self) -> Any:
        """Return the last written status without times, and the remaining objects."""
        return (
            without_times(self.cluster.statuses[-1]),
            sorted(p["metadata"]["name"] for p in self.cluster.pods()),
            len(self.cluster.children["Service"]),
            len(self.cluster.children["NetworkPolicy"]),
            KEY in self.cluster.jobs,
        )

    def recorded(self) -> dict[str, str]:
        """Return the states of the jobs in the list of finished jobs, by name."""
        found = self.cluster.config_maps.stored.get((KEY[0], CONFIG_MAP))
        return {one.name: one.state for one in read_finished(found)}

    def _apply(self, move: Move) -> None:
        name = move.pod["metadata"]["name"]
        if isinstance(move, ReportStatus):
            self.cluster.change_pod(name, **running_status("10.0.0.1", ready=move.ready))
        elif isinstance(move, EndContainer):
            self.cluster.change_pod(name, **ended_status(move.code, move.status))
        else:
            self.cluster.remove_pod(name)

    def _start_controller(self) -> None:
        """Start a new controller process, which knows only what it reads."""
        self.cluster.revive()
        if self._writes_per_life:
            self.cluster.kill_at(len(self.cluster.writes) + self._writes_per_life, after=True)
        self._cache = cache = Cache()
        self._keys = cache.replace(self.cluster.snapshot())
        self.cluster.watching = cache
        self._controller = Controller(
            self.cluster,
            cache,
            self._defaults,
            lambda: self.now,
            agents=DirectStatuses(self.cluster),
            observe=self._observe,
            finished_jobs=FinishedJobs(self.cluster.config_maps),
        )

    async def _settle(self) -> None:
        for _ in range(20):
            before = len(self.cluster.writes)
            if not await self._survives(self._controller.reconcile(KEY)):
                continue
            if len(self.cluster.writes) == before:
                return
        raise AssertionError(f"the controller never stops writing: {self.cluster.writes[-20:]}")

    async def _survives(self, reconcile: Awaitable[object]) -> bool:
        try:
            await reconcile
        except Killed:
            self.deaths += 1
            self._start_controller()
            return False
        return True

    def _check(self) -> None:
        """Check the invariants that hold after every write."""
        node_keys = [
            (p["metadata"]["labels"][contract.LABEL_JOB_UID], index)
            for p in self.cluster.living()
            if (index := p["metadata"]["labels"].get(contract.LABEL_NODE_INDEX))
        ]
        assert len(node_keys) == len(set(node_keys)), "two living pods have the same node index"
        attempts = [s.get("attempt", 0) for s in self.cluster.statuses]
        for before, after in itertools.pairwise(attempts):
            assert after - before in {0, 1}, "the attempt number skips or decreases"
        for budget in ("restarts", "infrastructureRestarts", "freeRestarts"):
            spent = [s.get(budget, 0) for s in self.cluster.statuses]
            assert spent == sorted(spent), "a restart counter decreases"
        newest = attempts[-1] if attempts else 0
        steps = [p for p in self.cluster.living() if _is_of_init_step(p)]
        assert len(steps) + bool(node_keys) <= 1, "an init step has another pod beside it"
        for pod in self.cluster.pods():
            if _is_of_init_step(pod):
                continue
            text = pod["metadata"]["annotations"][contract.ANNOTATION_ATTEMPT]
            if text == contract.ATTEMPT_STOP:
                continue
            order, status = order_of(pod), self.cluster.statuses[-1]
            assert order.attempt <= newest, "an order precedes the status"
            if order.attempt == newest and order.members is not None:
                members = node_ranges.from_text(status["members"])
                assert order.members == members, "an order names other members than the status"
        assert {p["status"]["phase"] for p in self.cluster.pods()} <= TERMINAL | {
            "Pending",
            "Running",
        }


def _is_of_init_step(pod: dict[str, Any]) -> bool:
    return contract.LABEL_INIT_STEP in pod["metadata"]["labels"]
