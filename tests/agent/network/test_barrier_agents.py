"""Start barrier: whole agents of one job, each in a thread, with a script in place of torchrun."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Ticker
from ddp_agent.network.barrier_client import StartBarrier
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import AgentPhase
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


@pytest.fixture
def store() -> Iterator[socket.socket]:
    """Port without a listener, for the c10d store of attempt 1."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


class OpenBarrier(StartBarrier):
    """Barrier that has been complete since `attempt`."""

    def __init__(self, attempt: int = 1) -> None:
        self.attempt, self.replaced = attempt, False

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        ticker.tick()
        return attempt >= self.attempt

    def obstacle(self, attempt: int) -> None:
        """Return no obstacle."""

    def replaced_node(self) -> int | None:
        return 1 if self.replaced else None

    def close(self) -> None:
        """Do nothing, because no connection is open."""


def node(home: Path, index: int, store: socket.socket, barrier: StartBarrier) -> AgentHarness:
    """Return a node of two, whose attempt 1 uses the store's port."""
    env: dict[str, str | None] = {
        Env.NODE_INDEX.value: str(index),
        Env.NODES.value: "2",
        Env.RENDEZVOUS_HOST.value: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE.value: str(store.getsockname()[1] - 1),
    }
    return AgentHarness(home, env=env, barrier=barrier)


@pytest.mark.parametrize("index", [0, 1])
def test_no_torchrun_starts_before_all_agents_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket, index: int
) -> None:
    stub_torchrun(monkeypatch, "")
    store.listen()
    agent = node(tmp_path, index, store, OpenBarrier(attempt=2))
    agent.write_order("1")
    agent.when(phase("Waiting"), lambda: agent.write_order("2"))
    if index:
        monkeypatch.setattr("ddp_agent.agent.rendezvous_port", lambda *_: store.getsockname()[1])
    assert agent.run() == ExitCode.OK
    assert "1:Starting" not in agent.phases()
    assert agent.phases()[-1] == "2:Succeeded"


@pytest.mark.parametrize("complete", [True, False])
def test_node_that_waits_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket, complete: bool
) -> None:
    """The node waits for the other agents, or later for node 0's store, which does not listen."""
    stub_torchrun(monkeypatch, "")
    agent = node(tmp_path, 1, store, OpenBarrier(attempt=1 if complete else 9))
    agent.write_order("1")
    agent.when(phase("Waiting"), lambda: agent.write_order("stop"))
    assert agent.run() == ExitCode.PREEMPTED
    assert agent.phases() == ["1:Waiting", "1:Preempted"]


def test_node_starts_when_the_store_of_node_0_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket
) -> None:
    stub_torchrun(monkeypatch, "")
    agent = node(tmp_path, 1, store, OpenBarrier())
    agent.write_order("1")
    agent.when(phase("Waiting"), store.listen)
    assert agent.run() == ExitCode.OK
    assert agent.phases() == ["1:Waiting", "1:Starting", "1:Succeeded"]


def test_node_0_ends_an_attempt_whose_peer_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: socket.socket
) -> None:
    stub_torchrun(monkeypatch, "if attempt == 1: run_forever()")
    barrier = OpenBarrier()
    agent = node(tmp_path, 0, store, barrier)
    agent.write_order("1")

    def replace_peer() -> None:
        barrier.replaced = True

    def order_next() -> None:
        barrier.replaced = False
        agent.write_order("2")

    agent.when(phase("Starting"), replace_peer)
    agent.when(phase("Failed"), order_next)
    assert agent.run() == ExitCode.OK
    failed = next(s for s in agent.statuses if s.phase is AgentPhase.FAILED)
    assert failed.failure is not None
    assert failed.failure.secondary
    assert failed.failure.replaced_node == 1
    assert "was replaced" in failed.failure.message
