"""Tests of which changes of the agent status wake waiting readers."""

import pytest

from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.messages import CheckpointInfo, Timeline
from tests.operator.support import agent_status

LAUNCHED = 100.0


@pytest.fixture
def cell() -> AgentStatusCell:
    return AgentStatusCell(agent_status(0, timeline=Timeline(ordered=99.0, launched=LAUNCHED)))


def saved(step: int, at: float) -> CheckpointInfo:
    return CheckpointInfo(step=step, path=f"/run/step-{step:08d}", at=at)


def test_first_checkpoint_of_an_attempt_wakes_the_reader_and_later_ones_do_not(
    cell: AgentStatusCell,
) -> None:
    before = cell.current().revision
    for step in (20, 40, 60):
        cell.set_checkpoint(saved(step, LAUNCHED + step))
        assert cell.current().revision == before + 1
    assert cell.current().checkpoint == saved(60, LAUNCHED + 60)


def test_checkpoint_from_which_the_attempt_resumed_does_not_wake_the_reader(
    cell: AgentStatusCell,
) -> None:
    before = cell.current().revision
    resumed = saved(20, LAUNCHED - 1.0)
    cell.set_checkpoint(resumed)
    assert (cell.current().checkpoint, cell.current().revision) == (resumed, before)
    cell.set_checkpoint(saved(40, LAUNCHED + 1.0))
    assert cell.current().revision == before + 1
