"""A run ends the same way when the controller is killed before or after any of its writes."""

import pytest

from tests.operator.simulation import Simulation
from tests.scenarios.flows import FLOWS, NAME, Flow, end_of


async def run(flow: Flow, kill: tuple[int, bool] | None = None) -> Simulation:
    simulation = Simulation(flow)
    if kill is not None:
        simulation.cluster.kill_at(kill[0], after=kill[1])
    await simulation.run()
    return simulation


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
async def test_each_simulated_run_has_the_expected_end(flow: Flow) -> None:
    simulation = await run(flow)
    assert end_of(simulation.cluster.statuses[-1]) == flow.end
    assert simulation.recorded() == {NAME: flow.reason}
    assert simulation.deaths == 0
    if flow.ttl:
        assert simulation.outcome()[1:] == ([], 0, 0, False)


# A kill after a write mostly leaves the same state as a kill before the next write.
@pytest.mark.parametrize(
    ("after", "every"),
    [
        pytest.param(False, 3, id="before each third write"),
        pytest.param(False, 1, id="before a write", marks=pytest.mark.slow),
        pytest.param(True, 1, id="after a write", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
async def test_kill_of_the_controller_at_any_write_does_not_change_the_end_of_a_run(
    flow: Flow, after: bool, every: int, subtests: pytest.Subtests
) -> None:
    undisturbed = await run(flow)
    writes = len(undisturbed.cluster.writes)
    assert writes > 8
    for write in range(1, writes + 1, every):
        with subtests.test(write=write, what=undisturbed.cluster.writes[write - 1]):
            disturbed = await run(flow, (write, after))
            assert disturbed.deaths == 1
            assert end_of(disturbed.cluster.statuses[-1]) == flow.end
            assert disturbed.outcome() == undisturbed.outcome()
            assert disturbed.recorded() == {NAME: flow.reason}


RECREATED_PODS = {
    "a rank fails": [],
    "one stalled attempt recreates the failed pod": ["digits-1"],
    "two stalled attempts recreate all pods": ["digits-0", "digits-1", "digits-1"],
}


@pytest.mark.parametrize(("name", "pods"), RECREATED_PODS.items(), ids=RECREATED_PODS.keys())
async def test_recreated_pod_is_not_a_fault_of_its_attempt(name: str, pods: list[str]) -> None:
    """Escalation recreates digits-1 for attempt 2 and both pods for attempt 3."""
    simulation = await run(FLOWS[name])
    created = [
        w.rpartition(" ")[2] for w in simulation.cluster.writes if w.startswith("create Pod")
    ]
    deleted = [
        w.rpartition(" ")[2] for w in simulation.cluster.writes if w.startswith("delete Pod")
    ]
    recreated = sorted(created)
    for first in ("digits-0", "digits-1"):
        recreated.remove(first)
    assert recreated == sorted(deleted)
    assert recreated == pods
    ended = simulation.cluster.statuses[-1]["attempts"]
    assert [a["number"] for a in ended] == list(range(1, FLOWS[name].attempt + 1))


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["a rank fails", "three stalled attempts fail the job", "suspended and resumed"]
)
async def test_controllers_killed_after_a_few_writes_reach_the_same_end(
    name: str, writes: int
) -> None:
    flow = FLOWS[name]
    undisturbed = await run(flow)
    simulation = Simulation(flow, writes_per_life=writes)
    await simulation.run()
    assert simulation.deaths >= len(undisturbed.cluster.writes) // (2 * writes)
    assert simulation.outcome() == undisturbed.outcome()
