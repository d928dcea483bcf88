"""Tests of both sides of the start barrier, also with a hostile peer."""

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ddp_agent.clock import Clock, Ticker
from ddp_agent.network.arrivals import Arrival, send_challenge
from ddp_agent.network.barrier import BarrierServer
from ddp_agent.network.barrier_client import START, BarrierClient
from ddp_wire.signatures import random_text
from tests.agent.support import few_files, wait_until

JOB = "uid-1"
SECRET, OTHER_SECRET = random_text(), random_text()


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
    """Return a client that has sent its arrival and has not received the start yet."""
    job, secret = changes.get("job", JOB), changes.get("secret", SECRET)
    client = BarrierClient("127.0.0.1", server.port, job, node_index, secret=secret)
    announce(server, client, attempt)
    return client


def announce(server: BarrierServer, client: BarrierClient, attempt: int) -> None:
    """Let a client connect and answer the challenge. Its arrival is then on its way."""
    assert not client.wait(attempt, ticker())
    while not client._announced:
        server.replaced_node()
        assert not client.wait(attempt, ticker())


def send(server: BarrierServer, data: bytes) -> socket.socket:
    link = idle(server)
    link.sendall(data)
    return link


def recorded_with(
    server: BarrierServer, message: Arrival, secret: str = SECRET
) -> tuple[socket.socket, bytes]:
    """Send a message on a new connection. Return the connection and the sent data."""
    link = idle(server)
    link.settimeout(0.05)
    tap = _Tap(link)

    def is_sent() -> bool:
        server.replaced_node()
        with contextlib.suppress(TimeoutError):
            message.send(tap, secret)  # type: ignore[arg-type]
        return bool(tap.sent)

    wait_until(is_sent, "the challenge is answered")
    return link, tap.sent


class _Tap:
    """Connection that records all sent data."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self.sent = link, b""

    def recv(self, size: int) -> bytes:
        return self._link.recv(size)

    def sendall(self, data: bytes) -> None:
        self.sent = data
        self._link.sendall(data)


def in_thread(wait: Callable[[], bool]) -> tuple[threading.Thread, list[bool]]:
    """Start a wait in a thread. The returned list receives the result."""
    answers: list[bool] = []

    def work() -> None:
        while not wait():
            pass
        answers.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, answers


def started(server: BarrierServer, *clients: BarrierClient, attempt: int = 1) -> bool:
    """Let the server read all arrivals. Return whether the server and these clients start."""
    complete = any(server.wait(attempt, ticker()) for _ in range(10))
    return complete and all(client.wait(attempt, ticker()) for client in clients)


@pytest.mark.slow
def test_all_nodes_start_once_the_last_one_has_arrived(server: BarrierServer) -> None:
    first = arrive(server, 1)
    assert not started(server)
    second = arrive(server, 2)
    assert started(server, first, second)


@pytest.mark.slow
def test_barrier_ignores_nodes_of_another_attempt(server: BarrierServer) -> None:
    first, second = arrive(server, 1, attempt=2), arrive(server, 2, attempt=1)
    assert not started(server)
    announce(server, second, 2)
    assert started(server, first, second, attempt=2)


@pytest.mark.slow
def test_barrier_ignores_a_node_that_ended_while_it_waited(server: BarrierServer) -> None:
    first, second = arrive(server, 1), arrive(server, 2)
    first.close()
    assert not started(server)
    first = arrive(server, 1)
    assert started(server, first, second)


@pytest.mark.slow
def test_replacement_of_a_waiting_node_takes_its_place(server: BarrierServer) -> None:
    lost = arrive(server, 1)
    successor, second = arrive(server, 1), arrive(server, 2)
    assert started(server, successor, second)
    assert not lost.wait(1, ticker())


@pytest.mark.slow
def test_server_reports_a_node_that_was_replaced_after_the_start(server: BarrierServer) -> None:
    assert started(server, arrive(server, 1), arrive(server, 2))
    assert server.replaced_node() is None
    arrive(server, 2)
    wait_until(lambda: server.replaced_node() == 2, "the replaced node is reported")
    first, second = arrive(server, 1, attempt=2), arrive(server, 2, attempt=2)
    assert started(server, first, second, attempt=2)
    assert server.replaced_node() is None


def test_barrier_repeats_the_start_to_a_node_that_missed_it(server: BarrierServer) -> None:
    first, second = arrive(server, 1), arrive(server, 2)
    assert started(server, first)
    second.close()
    thread, answers = in_thread(lambda: second.wait(1, ticker()))
    wait_until(lambda: server.replaced_node() is None and bool(answers), "the start is repeated")
    thread.join()


@pytest.mark.slow
def test_agents_of_other_jobs_and_unknown_nodes_are_refused(server: BarrierServer) -> None:
    arrive(server, 1)
    strangers = [arrive(server, 2, job="another"), arrive(server, 3), arrive(server, 0)]
    assert not started(server, *strangers)


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["", OTHER_SECRET], ids=["none", "of another job"])
def test_unsigned_arrival_neither_takes_a_place_nor_completes_the_barrier(
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
    assert "a message that claims to be from node" in caplog.text
    # Without a secret the same messages complete the barrier.
    assert started(unsigned_server, *(arrive(unsigned_server, i, secret=secret) for i in (1, 2)))


def test_signature_covers_all_of_a_message_and_the_challenge() -> None:
    first, second = socket.socketpair()
    with first, second:
        challenge = send_challenge(second)
        Arrival(job_uid=JOB, attempt=1, node_index=1).send(first, SECRET)
        sent = json.loads(second.recv(512))
    for change in ({"attempt": 2}, {"node_index": 2}, {"news": True}, {"agent": "x"}):
        assert not Arrival.model_validate(sent | change).is_genuine(SECRET, challenge)
    assert not Arrival.model_validate(sent).is_genuine(SECRET, random_text())
    assert Arrival.model_validate(sent).is_genuine(SECRET, challenge)


@pytest.mark.slow
def test_server_survives_random_input_and_idle_connections(server: BarrierServer) -> None:
    """A hostile pod sends random data, and opens more connections than the job has nodes."""
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
    """Return whether the server has closed a connection, after any challenge."""
    link.setblocking(False)
    try:
        while link.recv(512):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@pytest.mark.slow
def test_idle_connections_keep_no_node_from_the_barrier(server: BarrierServer) -> None:
    first = arrive(server, 1)
    held = [idle(server) for _ in range(100)]
    for _ in held:
        server.replaced_node()
    second = arrive(server, 2)
    assert started(server, first, second)
    closed = [is_closed(link) for link in held]
    assert closed == sorted(closed, reverse=True), "the oldest are closed"
    assert 36 <= sum(closed) < 100


def test_new_connection_displaces_no_connection_that_may_still_answer(
    server: BarrierServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an attacker that connects often enough could keep every node away."""
    monkeypatch.setattr("ddp_agent.network.barrier._ANSWER_SECONDS", 60.0)
    genuine = BarrierClient("127.0.0.1", server.port, JOB, 1, secret=SECRET)
    assert not genuine.wait(1, ticker())
    held = [idle(server) for _ in range(100)]
    for _ in held:
        server.replaced_node()
    assert not any(is_closed(link) for link in held)
    assert not genuine.wait(1, ticker())
    server.replaced_node()
    assert server.missing(1) == [2]
    began = time.process_time()
    server.wait(1, ticker())
    assert time.process_time() < began + 0.05, "the server waits for answers without spinning"


def test_all_nodes_may_connect_before_any_of_them_answers() -> None:
    """The nodes of a large job start at the same time, and their answers take a while."""
    nodes = 200
    made = BarrierServer("127.0.0.1", 0, JOB, nodes, secret=SECRET)
    links = [idle(made) for _ in range(1, nodes)]
    for _ in links:
        made.replaced_node()
    for index, link in enumerate(links, 1):
        Arrival(job_uid=JOB, attempt=1, node_index=index, agent=f"{index}").send(link, SECRET)
    wait_until(lambda: made.wait(1, ticker()), "all nodes have arrived")
    assert all(link.recv(512) == START for link in links)
    made.close()


def test_connection_without_an_arrival_is_closed_after_some_seconds(
    server: BarrierServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, link = arrive(server, 1), idle(server)
    wait_until(lambda: not server.wait(1, ticker()) and server.missing(1) == [2], "it arrives")
    with monkeypatch.context() as changed:
        changed.setattr("ddp_agent.network.barrier._ARRIVAL_SECONDS", 0.0)
        wait_until(lambda: server.replaced_node() is None and is_closed(link), "it is closed")
    assert started(server, first, arrive(server, 2)), "a node that has arrived may wait for days"


def is_refused(server: BarrierServer, recording: bytes) -> None:
    """Send a recorded message on a new connection, and check that the barrier closes it."""
    replay = partial(is_closed, send(server, recording))
    wait_until(lambda: server.replaced_node() is None and replay(), "it is refused")


def test_replayed_arrival_takes_no_place_and_keeps_no_node_away(
    server: BarrierServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker replays recordings of a living agent before and after the agent arrives."""
    message = Arrival(job_uid=JOB, attempt=1, node_index=1, agent="living")
    second = arrive(server, 2)
    earlier, recording = recorded_with(server, message)
    wait_until(lambda: server.wait(1, ticker()), "the attempt starts")
    assert second.wait(1, ticker())
    assert earlier.recv(512) == START
    for attempt in (1, 2):
        message = message.model_copy(update={"attempt": attempt})
        is_refused(server, recording)
        assert server.missing(attempt) == [1, 2]
    living, recording = recorded_with(server, message)
    wait_until(lambda: not server.wait(2, ticker()) and server.missing(2) == [2], "it waits")
    for _ in range(3):
        is_refused(server, recording)
        assert not is_closed(living)
    announce(server, second, 2)
    assert started(server, second, attempt=2)
    assert "or was replayed" in caplog.text


def test_old_agent_of_a_replaced_node_ends_no_attempt(server: BarrierServer) -> None:
    """The old agent may still run on a node that was cut off, and connect again."""
    old = Arrival(job_uid=JOB, attempt=1, node_index=1, agent="replaced")
    link, _ = recorded_with(server, old)
    wait_until(lambda: not server.wait(1, ticker()) and server.missing(1) == [2], "it arrives")
    link.close()
    assert started(server, arrive(server, 1), arrive(server, 2))
    again, _ = recorded_with(server, old)
    closed = partial(is_closed, again)
    wait_until(lambda: server.replaced_node() is None and closed(), "it is refused")


def test_replayed_notices_are_not_counted() -> None:
    notices: list[None] = []
    made = BarrierServer("127.0.0.1", 0, JOB, 2, lambda: notices.append(None), secret=SECRET)
    message = Arrival(job_uid=JOB, attempt=1, node_index=1, unread=True)
    for count in (1, 2):
        _, recording = recorded_with(made, message)
        wait_until(lambda: made.replaced_node() is None and len(notices) == count, "it counts")  # noqa: B023
        is_refused(made, recording)
        assert len(notices) == count
    made.close()


@pytest.mark.slow
def test_barrier_without_free_file_descriptors_warns_and_does_not_spin(
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
        announce(server, first, 1)
        wait_until(lambda: not server.wait(1, ticker()) and bool(caplog.messages), "it says so")
        began = time.process_time()
        for _ in range(3):
            server.wait(1, ticker())
        assert time.process_time() < began + 0.1
    assert "cannot accept the agents of all 2 other nodes: the limit is" in caplog.text
    announce(server, second, 1)
    wait_until(lambda: server.wait(1, ticker()), "the barrier accepts again", 10)
    assert first.wait(1, ticker())
    assert second.wait(1, ticker())
