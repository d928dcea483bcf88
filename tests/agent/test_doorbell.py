"""Doorbell: node 0's agent hears of a status of another node that nobody has read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.barrier import BarrierServer
from ddp_agent.clock import Clock
from ddp_agent.doorbell import Doorbell
from ddp_agent.reporter import AttemptReporter
from ddp_agent.status_cell import AgentStatusCell
from ddp_wire.contract import AgentPhase, Env
from tests.agent.support import FakeStatusCell, config, wait_until
from tests.operator.support import UID, agent_status


class Node0:
    """Node 0's side: the barrier that hears the news, and the status that counts it."""

    def __init__(self) -> None:
        self.cell = AgentStatusCell(agent_status(0, news=0))
        self.barrier = BarrierServer("127.0.0.1", 0, UID, 2, self.cell.count_news)

    def news(self) -> int | None:
        """Return the number of news, after serving what has arrived."""
        assert self.barrier.replaced_node() is None
        return self.cell.current().news


@pytest.fixture
def node_0() -> Iterator[Node0]:
    made = Node0()
    yield made
    made.barrier.close()


def peer(home: Path, node_0: Node0, index: int = 1) -> FakeStatusCell:
    """Return the status of another node, whose doorbell rings at node 0."""
    cell = FakeStatusCell(agent_status(index))
    changes: dict[str, str | None] = {
        Env.JOB_UID: UID,
        Env.NODE_INDEX: str(index),
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.BARRIER_PORT: str(node_0.barrier.port),
    }
    Doorbell(config(home, **changes), cell).start()
    return cell


def test_unread_failure_is_reported_again_until_somebody_reads_it(
    tmp_path: Path, node_0: Node0
) -> None:
    cell = peer(tmp_path, node_0)
    cell.record_read(cell.current())
    cell.enter(AgentPhase.FAILED, 5.0)
    wait_until(lambda: (node_0.news() or 0) >= 2, "node 0 hears it twice")
    assert node_0.cell.current().revision == node_0.news()  # Who waits for node 0 is woken.
    cell.record_read(cell.current())
    before, waits = node_0.news(), cell.waits
    wait_until(lambda: cell.waits > waits, "the doorbell looks again")
    assert (node_0.news() or 0) <= (before or 0) + 1  # One more may have been on its way.


def test_agent_that_nobody_has_asked_yet_is_quiet(tmp_path: Path, node_0: Node0) -> None:
    """The operator asks such an agent again and again anyway."""
    cell = peer(tmp_path, node_0)
    cell.enter(AgentPhase.FAILED, 5.0)
    wait_until(lambda: cell.waits >= 5, "the doorbell looks several times")
    assert node_0.news() == 0


@pytest.mark.parametrize(
    ("change", "rings"),
    [
        ({"phase": AgentPhase.STARTING}, False),
        ({"phase": AgentPhase.TRAINING}, False),
        ({"phase": AgentPhase.TRAINING, "hang": []}, True),
        ({"phase": AgentPhase.SUCCEEDED}, True),
        ({"phase": AgentPhase.PREEMPTED}, True),
    ],
    ids=str,
)
def test_only_a_status_on_which_the_operator_acts_is_news(
    tmp_path: Path, node_0: Node0, change: dict[str, object], rings: bool
) -> None:
    """Thousands of agents start to train at once, and node 0's agent reports it for all."""
    cell = peer(tmp_path, node_0)
    cell.record_read(cell.current())
    status = cell.current()
    cell.set(status.model_copy(update={**change, "revision": status.revision + 1}))
    looked = "the doorbell looks several times"
    wait_until(lambda: node_0.news() is not None and cell.waits >= 5, looked)
    if rings:
        wait_until(lambda: (node_0.news() or 0) >= 1, "node 0 hears it")
    else:
        assert node_0.news() == 0


def test_only_node_0_counts_news(tmp_path: Path) -> None:
    reporters = [
        AttemptReporter(config(tmp_path, **{Env.NODE_INDEX: str(index)}), Clock())
        for index in (0, 1)
    ]
    assert [one.status.news for one in reporters] == [0, None]
    for one in reporters:
        one.start_attempt(1, ["torchrun"])
    assert [one.status.news for one in reporters] == [0, None]
