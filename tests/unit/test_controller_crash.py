"""The controller dies before and after every single write of a run: the run ends the same way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddp_agent.contract import Failure
from tests.unit.fake_cluster import FakeCluster
from tests.unit.simulation import KEY, Script, Simulation
from tests.unit.support import NOW, job_manifest


@dataclass
class Flow:
    """A run and what is to become of it."""

    script: Callable[[], Script]
    attempt: int
    restarts: int
    reason: str
    spec: dict[str, Any] = field(default_factory=dict)
    ttl: bool = True
    infrastructure: int = 0

    @property
    def end(self) -> tuple[str, int, int, int]:
        return self.reason, self.attempt, self.restarts, self.infrastructure

    def start(self, *, writes_per_life: int = 0) -> Simulation:
        spec = {"nodes": 2, **({"ttlSecondsAfterFinished": 5} if self.ttl else {}), **self.spec}
        return Simulation(job_manifest(**spec), self.script(), writes_per_life=writes_per_life)

    def over(self, run: Simulation) -> bool:
        if self.ttl:
            return KEY not in run.cluster.jobs
        status = run.cluster.jobs[KEY].get("status", {})
        return "completionTime" in status and not run.cluster.living()


def fall(attempt: int = 1, **more: Any) -> Failure:
    given = {
        "attempt": attempt,
        "at": NOW.timestamp(),
        "rank": 1,
        "exit_code": 1,
        "message": "E: x",
    }
    return Failure(**(given | more))


def scale_down(run: Simulation) -> None:
    run.edit(nodes=1)


def suspend(run: Simulation) -> None:
    run.edit(suspend=True)


def resume(run: Simulation) -> None:
    run.edit(suspend=False)


SAVES: dict[str, Any] = {"checkpoint": {"claimName": "shared"}, "maxRestarts": 9}

FLOWS = {
    "undisturbed": Flow(Script, 1, 0, "Completed"),
    "a rank falls": Flow(lambda: Script(falls={(1, 1): fall()}), 2, 1, "Completed"),
    "two ranks fall one after the other": Flow(
        lambda: Script(falls={(1, 1): fall(), (2, 0): fall(2)}), 3, 2, "Completed"
    ),
    "a pod dies": Flow(lambda: Script(dies={(1, 1)}), 2, 0, "Completed", infrastructure=1),
    "node 0's pod dies": Flow(lambda: Script(dies={(1, 0)}), 2, 0, "Completed", infrastructure=1),
    "ranks fall too often": Flow(
        lambda: Script(falls={(1, 1): fall(), (2, 1): fall(2)}),
        2,
        1,
        "Failed",
        {"maxRestarts": 1},
        ttl=False,
    ),
    "bad input": Flow(lambda: Script(falls={(1, 1): fall(exit_code=2)}), 1, 0, "Failed", ttl=False),
    "pods die too often": Flow(
        lambda: Script(dies={(1, 1), (2, 0)}),
        2,
        0,
        "Failed",
        {"maxRestarts": 0, "maxInfrastructureRestarts": 1},
        ttl=False,
        infrastructure=1,
    ),
    "a pod is made anew because its attempt stalled": Flow(
        lambda: Script(falls={(1, 1): fall()}), 2, 1, "Completed", SAVES
    ),
    "all pods are made anew because two attempts stalled": Flow(
        lambda: Script(falls={(1, 1): fall(), (2, 0): fall(2)}), 3, 2, "Completed", SAVES
    ),
    "three attempts stall": Flow(
        lambda: Script(falls={(n, 1): fall(n) for n in (1, 2, 3)}),
        3,
        2,
        "Failed",
        SAVES,
        ttl=False,
    ),
    "a saved step between stalled attempts": Flow(
        lambda: Script(falls={(n, 1): fall(n) for n in (1, 2, 3, 4)}, saves={3: 10}),
        5,
        4,
        "Completed",
        SAVES,
    ),
    "suspended and resumed": Flow(lambda: Script(asked={2: suspend, 6: resume}), 2, 0, "Completed"),
    "scaled down while it trains": Flow(lambda: Script(asked={2: scale_down}), 2, 0, "Completed"),
    "cleaned up": Flow(Script, 1, 0, "Completed", {"cleanPodPolicy": "All"}, ttl=False),
}


async def run(flow: Flow, kill: tuple[int, bool] | None = None) -> Simulation:
    simulation = flow.start()
    if kill is not None:
        simulation.cluster.kill_at(kill[0], after=kill[1])
    await simulation.run(until=flow.over)
    return simulation


def summary_of(cluster: FakeCluster) -> tuple[str, int, int, int]:
    last = cluster.statuses[-1]
    reasons = {c["type"]: c["reason"] for c in last["conditions"]}
    counts = last["attempt"], last["restarts"], last["infrastructureRestarts"]
    return reasons["Succeeded"], *counts


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
async def test_a_run_ends_as_it_should(flow: Flow) -> None:
    simulation = await run(flow)
    assert summary_of(simulation.cluster) == flow.end
    assert simulation.deaths == 0
    if flow.ttl:
        assert simulation.outcome()[1:] == ([], 0, False)


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
async def test_a_controller_that_dies_at_any_write_changes_nothing_about_the_end(
    flow: Flow, after: bool, subtests: pytest.Subtests
) -> None:
    undisturbed = await run(flow)
    writes = len(undisturbed.cluster.writes)
    assert writes > 8
    for write in range(1, writes + 1):
        with subtests.test(write=write, what=undisturbed.cluster.writes[write - 1]):
            disturbed = await run(flow, (write, after))
            assert disturbed.deaths == 1
            assert summary_of(disturbed.cluster) == flow.end
            assert disturbed.outcome() == undisturbed.outcome()


MADE_ANEW = {
    "a rank falls": [],
    "a pod is made anew because its attempt stalled": ["digits-1"],
    "all pods are made anew because two attempts stalled": ["digits-0", "digits-1", "digits-1"],
}


@pytest.mark.parametrize(("name", "pods"), MADE_ANEW.items(), ids=MADE_ANEW.keys())
async def test_a_pod_that_is_made_anew_is_no_loss_of_the_attempt_that_it_is_made_for(
    name: str, pods: list[str]
) -> None:
    """In attempt 2 it is digits-1 by the ladder's first rung, in attempt 3 both by its second."""
    simulation = await run(FLOWS[name])
    made = [w.rpartition(" ")[2] for w in simulation.cluster.writes if w.startswith("create Pod")]
    gone = [w.rpartition(" ")[2] for w in simulation.cluster.writes if w.startswith("delete Pod")]
    again = sorted(made)
    for first in ("digits-0", "digits-1"):
        again.remove(first)
    assert again == sorted(gone)
    assert again == pods
    ended = simulation.cluster.statuses[-1]["attempts"]
    assert [a["number"] for a in ended] == list(range(1, FLOWS[name].attempt + 1))


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("name", ["a rank falls", "three attempts stall", "suspended and resumed"])
async def test_controllers_that_live_for_a_few_writes_come_to_the_end_all_the_same(
    name: str, writes: int
) -> None:
    flow = FLOWS[name]
    undisturbed = await run(flow)
    simulation = flow.start(writes_per_life=writes)
    await simulation.run(until=flow.over)
    assert simulation.deaths >= len(undisturbed.cluster.writes) // (2 * writes)
    assert simulation.outcome() == undisturbed.outcome()
