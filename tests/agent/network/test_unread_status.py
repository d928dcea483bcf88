"""Notices of an unread status: node 0's agent counts those of the other nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.network.barrier import BarrierServer
from ddp_agent.network.unread_status import UnreadStatusNotifier
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_agent.status_writer import StatusWriter
from ddp_wire.contract import Env
from ddp_wire.messages import AgentPhase
from tests.agent.support import FakeStatusCell, config, members, wait_until
from tests.operator.support import UID, agent_status


class Node0:
    """Node 0's side: the barrier that receives notices, and the status that counts them."""

    def __init__(self) -> None:
        self.cell = AgentStatusCell(agent_status(0, unread_notices=0))
        self.barrier = BarrierServer("127.0.0.1", 0, UID, 2, self.cell.count_unread)

    def notices(self) -> int | None:
        """Serve all arrived notices, and return their number."""
        assert self.barrier.replaced_node() is None
        return self.cell.current().unread_notices


@pytest.fixture
def node_0() -> Iterator[Node0]:
    made = Node0()
    yield made
    made.barrier.close()


def peer(home: Path, node_0: Node0, index: int = 1) -> FakeStatusCell:
    """Return the status of another node, whose notifier sends notices to node 0."""
    cell = FakeStatusCell(agent_status(index))
    changes: dict[str, str | None] = {
        Env.JOB_UID: UID,
        Env.NODE_INDEX: str(index),
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.BARRIER_PORT: str(node_0.barrier.port),
    }
    UnreadStatusNotifier(config(home, **changes), cell).start()
    return cell


def test_notices_of_an_unread_failure_repeat_until_it_is_read(
    tmp_path: Path, node_0: Node0
) -> None:
    cell = peer(tmp_path, node_0)
    cell.record_read(cell.current())
    cell.enter(AgentPhase.FAILED, 5.0)
    wait_until(lambda: (node_0.notices() or 0) >= 2, "node 0 gets two notices")
    assert node_0.cell.current().revision == node_0.notices()  # An open request is answered.
    cell.record_read(cell.current())
    before, waits = node_0.notices(), cell.waits
    wait_until(lambda: cell.waits > waits, "the notifier looks again")
    assert (node_0.notices() or 0) <= (before or 0) + 1  # One more may have been on its way.


def test_agent_that_was_never_read_sends_no_notice(tmp_path: Path, node_0: Node0) -> None:
    """The operator polls such an agent repeatedly anyway."""
    cell = peer(tmp_path, node_0)
    cell.enter(AgentPhase.FAILED, 5.0)
    wait_until(lambda: cell.waits >= 5, "the notifier looks several times")
    assert node_0.notices() == 0


@pytest.mark.parametrize(
    ("change", "notifies"),
    [
        ({"phase": AgentPhase.STARTING}, False),
        ({"phase": AgentPhase.TRAINING}, False),
        ({"phase": AgentPhase.TRAINING, "hang": []}, True),
        ({"phase": AgentPhase.SUCCEEDED}, True),
        ({"phase": AgentPhase.PREEMPTED}, True),
    ],
    ids=str,
)
def test_only_a_status_on_which_the_operator_acts_causes_notices(
    tmp_path: Path, node_0: Node0, change: dict[str, object], notifies: bool
) -> None:
    """When thousands of agents start to train at once, node 0's agent reports the start for all."""
    cell = peer(tmp_path, node_0)
    cell.record_read(cell.current())
    status = cell.current()
    cell.set(status.model_copy(update={**change, "revision": status.revision + 1}))
    looked = "the notifier looks several times"
    wait_until(lambda: node_0.notices() is not None and cell.waits >= 5, looked)
    if notifies:
        wait_until(lambda: (node_0.notices() or 0) >= 1, "node 0 gets a notice")
    else:
        assert node_0.notices() == 0


def test_only_node_0_counts_notices(tmp_path: Path) -> None:
    nodes = [config(tmp_path, **{Env.NODE_INDEX: str(index)}) for index in (0, 1)]
    writers = [StatusWriter(node, Clock()) for node in nodes]
    assert [one.status.unread_notices for one in writers] == [0, None]
    for one, node in zip(writers, nodes, strict=True):
        one.start_attempt(members(node), ["torchrun"])
    assert [one.status.unread_notices for one in writers] == [0, None]
