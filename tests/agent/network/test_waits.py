"""Tests of the report and the time limit while a node cannot start an attempt."""

import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Clock, Ticker
from ddp_agent.network.barrier import BarrierServer
from ddp_agent.network.barrier_client import BarrierClient, StartBarrier
from ddp_agent.network.waits import Obstacle, unreachable
from ddp_wire.contract import Env, ExitCode
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")

BLOCKED = "cannot reach digits-0 on port 8471: timed out"


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


class BlockedBarrier(StartBarrier):
    """Barrier that a node cannot reach (a fake)."""

    def __init__(self, found: Obstacle) -> None:
        self.found = found

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        ticker.tick()
        return attempt < 1

    def obstacle(self, attempt: int) -> Obstacle:
        assert attempt == 1
        return self.found

    def close(self) -> None:
        """Do nothing, because no connection is open."""


NETWORK, REFUSED = Obstacle(BLOCKED, is_network=True), Obstacle(BLOCKED, is_refused=True)


def agent(home: Path, found: Obstacle, detect: str = "true") -> AgentHarness:
    hang = f'{{"startSeconds": 60, "detect": {detect}}}'
    env: dict[str, str | None] = {Env.NODE_INDEX: "1", Env.NODES: "2", Env.HANG: hang}
    made = AgentHarness(home, env=env, barrier=BlockedBarrier(found), tick_seconds=4.0)
    made.write_order("1")
    return made


@pytest.mark.parametrize(
    ("found", "limit"), [(NETWORK, 60), (REFUSED, 240)], ids=["dropped", "refused"]
)
def test_network_that_keeps_a_node_from_the_barrier_is_reported_and_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Obstacle, limit: int
) -> None:
    stub_torchrun(monkeypatch, "")
    node, reported = agent(tmp_path, found), list[float]()
    node.when(lambda status: status.waits_for == BLOCKED, lambda: reported.append(node.monotonic))
    node.when(phase("Failed"), node.orders.stop)
    assert node.run() == ExitCode.FAILED
    assert 15 <= reported[0] <= 24
    assert limit <= node.monotonic <= limit + 20
    assert node.status.failure is not None
    assert re.fullmatch(rf"{BLOCKED}, for {limit // 10}\d s", node.status.failure.message)
    assert node.status.failure.network
    assert node.status.waits_for is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("found", "detect"),
    [(Obstacle(BLOCKED), "true"), (NETWORK, "false"), (REFUSED, "false")],
    ids=["no pod", "without a limit", "refused without a limit"],
)
def test_node_waits_for_days_for_a_pod_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Obstacle, detect: str
) -> None:
    stub_torchrun(monkeypatch, "")
    node = agent(tmp_path, found, detect)
    node.when(lambda status: status.waits_for == BLOCKED, lambda: None)
    node.when(lambda _: node.monotonic > 600, node.orders.stop)
    assert node.run() == ExitCode.PREEMPTED
    assert node.status.failure is None


def test_both_sides_of_the_barrier_state_who_is_missing() -> None:
    server, ticker = BarrierServer("127.0.0.1", 0, "uid-1", nodes=11), Ticker(Clock())
    port = server.port
    client = BarrierClient("127.0.0.1", port, "uid-1", 1)
    while 1 in server.missing(1):
        assert not client.wait(1, ticker)
        assert not server.wait(1, ticker)
    assert client.obstacle(1) is None
    found = f"waits on port {port} for the agents of nodes 2, 3, 4, 5, 6, 7, 8, 9 and 1 more"
    assert server.obstacle(1) == Obstacle(found)
    server.close()
    late = BarrierClient("127.0.0.1", port, "uid-1", 2)
    assert not late.wait(1, ticker)
    refused = f"cannot reach 127.0.0.1 on port {port}: Connection refused"
    assert late.obstacle(1) == Obstacle(refused, is_refused=True)
    assert late.obstacle(2) is None
    client.close()


@pytest.mark.parametrize(
    ("error", "reason", "is_network"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "Name not known", False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "Temporary failure", True),
        (ConnectionError("timed out"), "timed out", True),
        (OSError(113, "No route to host"), "No route to host", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_that_a_starting_pod_causes_are_not_blamed_on_the_network(
    error: OSError, reason: str, is_network: bool
) -> None:
    expected = Obstacle(f"cannot reach digits-0 on port 8471: {reason}", is_network)
    assert unreachable(("digits-0", 8471), error) == expected
