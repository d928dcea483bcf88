"""Start barrier: whole agents of one job, each in a thread, with a script in place of torchrun."""

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ddp_agent.arrivals import Arrival
from ddp_agent.barrier import BarrierClient, BarrierServer, StartBarrier
from ddp_agent.clock import Clock, Ticker
from ddp_wire.contract import AgentPhase, Env, ExitCode
from ddp_wire.signatures import random_text
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans, few_files, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")

JOB = "uid-1"
SECRET, OTHER_SECRET = random_text(), random_text()


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


@pytest.fixture
def server() -> Iterator[BarrierServer]:
    """Barrier of node 0 in a job of three nodes."""
    made = BarrierServer("127.0.0.1", 0, JOB, nodes=3, secret=SECRET)
    yield made
    made.close()


@pytest.fixture
def unsigned_server() -> Iterator[BarrierServer]:
    """Barrier of node 0 in a job of an older operator, which has no secret."""
    made = BarrierServer("127.0.0.1", 0, JOB, nodes=3)
    yield made
    made.close()


def ticker() -> Ticker:
    return Ticker(Clock())


def arrive(
    server: BarrierServer, node_index: int, attempt: int = 1, **changes: str
) -> BarrierClient:
    """Return a client that has sent its arrival and does not yet have the start."""
    job, secret = changes.get("job", JOB), changes.get("secret", SECRET)
    client = BarrierClient("127.0.0.1", server.port, job, node_index, secret=secret)
    assert not client.wait(attempt, ticker())
    return client


def send(server: BarrierServer, data: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    link.sendall(data)
    return link


def in_thread(wait: Callable[[], bool]) -> tuple[threading.Thread, list[bool]]:
    """Start to wait in a thread. The list receives the answer."""
    answers: list[bool] = []

    def work() -> None:
        while not wait():
            pass
        answers.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, answers


def started(server: BarrierServer, *clients: BarrierClient, attempt: int = 1) -> bool:
    """Let the server see what has arrived. Return whether it and these clients start."""
    complete = any(server.wait(attempt, ticker()) for _ in range(10))
    return complete and all(client.wait(attempt, ticker()) for client in clients)


def test_all_nodes_start_once_the_last_one_has_arrived(server: BarrierServer) -> None:
    first = arrive(server, 1)
    assert not started(server)
    second = arrive(server, 2)
    assert started(server, first, second)


def test_nodes_of_another_attempt_do_not_count(server: BarrierServer) -> None:
    first, second = arrive(server, 1, attempt=2), arrive(server, 2, attempt=1)
    assert not started(server)
    assert not second.wait(2, ticker())
    assert started(server, first, second, attempt=2)


def test_a_node_that_ended_while_it_waited_does_not_count(server: BarrierServer) -> None:
    first, second = arrive(server, 1), arrive(server, 2)
    first.close()
    assert not started(server)
    first = arrive(server, 1)
    assert started(server, first, second)


def test_a_replaced_node_takes_the_place_of_the_one_that_waited(server: BarrierServer) -> None:
    lost = arrive(server, 1)
    successor, second = arrive(server, 1), arrive(server, 2)
    assert started(server, successor, second)
    assert not lost.wait(1, ticker())


def test_server_reports_a_node_that_was_replaced_after_the_start(server: BarrierServer) -> None:
    assert started(server, arrive(server, 1), arrive(server, 2))
    assert server.replaced_node() is None
    arrive(server, 2)
    wait_until(lambda: server.replaced_node() == 2, "the replaced node is reported")
    first, second = arrive(server, 1, attempt=2), arrive(server, 2, attempt=2)
    assert started(server, first, second, attempt=2)
    assert server.replaced_node() is None


def test_node_that_missed_the_start_receives_it_again(server: BarrierServer) -> None:
    first, second = arrive(server, 1), arrive(server, 2)
    assert started(server, first)
    second.close()
    thread, answers = in_thread(lambda: second.wait(1, ticker()))
    wait_until(lambda: server.replaced_node() is None and bool(answers), "the start is repeated")
    thread.join()


def test_agents_of_other_jobs_and_unknown_nodes_are_refused(server: BarrierServer) -> None:
    arrive(server, 1)
    strangers = [arrive(server, 2, job="another"), arrive(server, 3), arrive(server, 0)]
    assert not started(server, *strangers)


@pytest.mark.parametrize("secret", ["", OTHER_SECRET], ids=["none", "of another job"])
def test_case_75_stranger_neither_takes_the_place_of_a_node_nor_completes_the_barrier(
    server: BarrierServer,
    unsigned_server: BarrierServer,
    secret: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = arrive(server, 1)
    strangers = [arrive(server, index, secret=secret) for index in (1, 2)]
    assert not started(server, *strangers)
    assert started(server, first, arrive(server, 2))
    arrive(server, 2, secret=secret)
    server.wait(1, ticker())
    assert server.replaced_node() is None, "a stranger would end the attempt"
    assert len(caplog.messages) == 1
    assert "a message in the name of node" in caplog.text
    # Without a secret the same messages complete the barrier.
    assert started(unsigned_server, *(arrive(unsigned_server, i, secret=secret) for i in (1, 2)))


def test_signature_covers_all_of_a_message() -> None:
    first, second = socket.socketpair()
    with first, second:
        Arrival(job_uid=JOB, attempt=1, node_index=1).send(first, SECRET)
        sent = json.loads(second.recv(512))
    for change in ({"attempt": 2}, {"node_index": 2}, {"news": True}, {"agent": "x"}):
        assert not Arrival.model_validate(sent | change).is_genuine(SECRET)
    assert Arrival.model_validate(sent).is_genuine(SECRET)


def test_server_survives_random_input_and_idle_connections(server: BarrierServer) -> None:
    """A hostile pod sends anything, and opens more connections than the job has nodes."""
    chance = random.Random(0)  # noqa: S311 (a test)
    held = []
    for _ in range(300):
        end = b"\n" if chance.random() < 0.5 else b""
        held.append(send(server, chance.randbytes(chance.randrange(600)) + end))
        server.wait(1, ticker())
    held.append(send(server, json.dumps({"attempt": 10**900}).encode() + b"\n"))
    for link in held:
        link.close()
    for _ in range(400):
        server.replaced_node()
    assert started(server, arrive(server, 1), arrive(server, 2))


def idle(server: BarrierServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False


def test_case_115_idle_connections_keep_no_node_from_the_barrier(server: BarrierServer) -> None:
    first = arrive(server, 1)
    held = [idle(server) for _ in range(100)]
    for _ in held:
        server.replaced_node()
    assert started(server, first, arrive(server, 2))
    closed = [is_closed(link) for link in held]
    assert closed == sorted(closed, reverse=True), "the oldest are closed"
    assert 36 <= sum(closed) < 100


def test_case_115_connection_without_an_arrival_is_closed_after_some_seconds(
    server: BarrierServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, link = arrive(server, 1), idle(server)
    wait_until(lambda: not server.wait(1, ticker()) and server.missing(1) == [2], "it arrives")
    with monkeypatch.context() as changed:
        changed.setattr("ddp_agent.barrier._ARRIVAL_SECONDS", 0.0)
        wait_until(lambda: server.replaced_node() is None and is_closed(link), "it is closed")
    assert started(server, first, arrive(server, 2)), "a node that has arrived may wait for days"


def test_case_115_replayed_arrival_of_a_replaced_agent_ends_no_attempt(
    server: BarrierServer,
) -> None:
    old = Arrival(job_uid=JOB, attempt=1, node_index=1, agent="replaced")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        old.send(ours, SECRET)
        recorded = theirs.recv(512)
    older = send(server, recorded)
    for _ in range(3):
        server.wait(1, ticker())
    older.close()
    assert started(server, arrive(server, 1), arrive(server, 2))
    for _ in range(3):
        replay = send(server, recorded)
        refused = partial(is_closed, replay)
        wait_until(lambda: server.replaced_node() is None and refused(), "it is refused")  # noqa: B023


def test_case_115_replayed_news_count_once() -> None:
    news: list[None] = []
    made = BarrierServer("127.0.0.1", 0, JOB, 2, lambda: news.append(None), secret=SECRET)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for name in ("", "one"):  # An older agent gives its message no name.
            Arrival(job_uid=JOB, attempt=1, node_index=1, news=True, agent=name).send(ours, SECRET)
        unnamed, named, _ = theirs.recv(1024).split(b"\n")
    for recorded, expected in ((unnamed, 3), (named, 4)):
        for _ in range(3):
            closed = partial(is_closed, send(made, recorded + b"\n"))
            wait_until(lambda: made.replaced_node() is None and closed(), "it is read")  # noqa: B023
        assert len(news) == expected
    made.close()


def test_case_116_barrier_without_free_files_says_so_and_does_not_spin(
    server: BarrierServer, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = idle(server)
    server.replaced_node()
    first, second = (
        BarrierClient("127.0.0.1", server.port, JOB, index, secret=SECRET) for index in (1, 2)
    )
    assert not first.wait(1, ticker())
    assert not second.wait(1, ticker())
    with few_files():
        wait_until(lambda: not server.wait(1, ticker()) and is_closed(stranger), "room is made")
        wait_until(lambda: not server.wait(1, ticker()) and bool(caplog.messages), "it says so")
        began = time.process_time()
        for _ in range(3):
            server.wait(1, ticker())
        assert time.process_time() < began + 0.1
    assert "cannot accept the agents of all 2 other nodes: the limit is" in caplog.text
    wait_until(lambda: server.wait(1, ticker()), "the barrier accepts again", 10)
    assert first.wait(1, ticker())
    assert second.wait(1, ticker())


# --- Whole agents ---------------------------------------------------------------------------------


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
        """Nothing is in the way."""

    def replaced_node(self) -> int | None:
        return 1 if self.replaced else None

    def close(self) -> None:
        """Nothing is open."""


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
    """It waits for the other agents, or afterwards for node 0's store, which does not listen."""
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


def test_case_200_node_0_ends_an_attempt_whose_peer_was_replaced(
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
