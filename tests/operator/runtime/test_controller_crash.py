"""The controller dies before and after every single write of a run: the run ends the same way."""

import pytest

from tests.operator.simulation import Simulation
from tests.scenarios.flows import FLOWS, Flow, end_of


async def run(flow: Flow, kill: tuple[int, bool] | None = None) -> Simulation:
    simulation = Simulation(flow)
    if kill is not None:
        simulation.cluster.kill_at(kill[0], after=kill[1])
    await simulation.run()
    return simulation


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
async def test_a_run_ends_as_it_should(flow: Flow) -> None:
    simulation = await run(flow)
    assert end_of(simulation.cluster.statuses[-1]) == flow.end
    assert simulation.deaths == 0
    if flow.ttl:
        assert simulation.outcome()[1:] == ([], 0, False)


# What a death after a write leaves behind is mostly what one before the next write does.
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(False, id="before a write"),
        pytest.param(True, id="after a write", marks=pytest.mark.slow),
    ],
)
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
            assert end_of(disturbed.cluster.statuses[-1]) == flow.end
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
    simulation = Simulation(flow, writes_per_life=writes)
    await simulation.run()
    assert simulation.deaths >= len(undisturbed.cluster.writes) // (2 * writes)
    assert simulation.outcome() == undisturbed.outcome()
