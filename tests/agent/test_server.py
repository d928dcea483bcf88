"""The agent's endpoints over real HTTP."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ddp_agent.server import AgentServer
from ddp_agent.word import Word
from ddp_wire.contract import AgentPhase, AgentStatus, AttemptOrder
from tests.agent.support import Told, beat, wait_until
from tests.operator.support import UID, word


@dataclass
class Served:
    """A server, and the agent that it tells of."""

    agent: Told
    port: int = 0

    def ask(self, path: str, method: str = "GET", body: str = "") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body=body or None)
        answer = connection.getresponse()
        found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        connection.close()
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One for all tests: a server takes its time to close."""
    found = Served(Told())
    running = AgentServer("127.0.0.1", 0, found.agent)
    found.port = running.port
    running.start()
    yield found
    running.close()


@pytest.fixture
def served(server: Served) -> Served:
    server.agent.word = Word(word(1, attempt=3, phase="Starting", ranks=[beat()]))
    server.agent.lives = True
    server.agent.orders.clear()
    return server


@pytest.mark.parametrize("phase", list(AgentPhase))
def test_a_node_is_ready_only_while_it_trains(served: Served, phase: AgentPhase) -> None:
    served.agent.word = Word(word(1, attempt=3, phase=phase))
    ready = phase is AgentPhase.TRAINING
    code, _, text = served.ask("/readyz")
    assert code == (200 if ready else 503)
    assert text == ("ok\n" if ready else f"attempt 3 is {phase}\n")


def test_a_loop_that_hangs_is_not_healthy(served: Served) -> None:
    assert served.ask("/healthz")[0] == 200
    served.agent.lives = False
    assert served.ask("/healthz")[::2] == (503, "the agent's loop hangs\n")


def test_the_status_is_the_contracts_document(served: Served) -> None:
    code, kind, text = served.ask("/status")
    assert (code, kind) == (200, "application/json")
    assert AgentStatus.model_validate_json(text) == served.agent.status()
    assert json.loads(text)["nodeIndex"] == 1


def test_other_paths_and_methods_are_refused(served: Served) -> None:
    assert served.ask("/")[0] == 404
    assert served.ask("/status", "POST")[0] == 404
    assert served.ask("/status", "PUT")[0] == 501


def test_a_request_for_news_is_answered_when_there_are_some(served: Served) -> None:
    answers: list[AgentStatus] = []

    def listen() -> None:
        answers.append(AgentStatus.model_validate_json(served.ask("/status?revision=0&wait=9")[2]))

    listener = threading.Thread(target=listen)
    before = served.agent.listeners
    listener.start()
    wait_until(lambda: served.agent.listeners > before, "the question is being answered")
    assert not answers
    served.agent.word.enter(AgentPhase.FAILED, 5.0)
    listener.join(timeout=10)
    assert [(a.revision, a.phase) for a in answers] == [(1, AgentPhase.FAILED)]


@pytest.mark.parametrize(
    "query", ["revision=7&wait=20", "revision=0&wait=0", "wait=-3", "wait=nan"]
)
def test_what_is_news_already_or_cannot_be_waited_for_is_told_at_once(
    served: Served, query: str
) -> None:
    assert served.ask(f"/status?{query}")[0] == 200


@pytest.mark.parametrize("query", ["revision=new", "wait=long"])
def test_a_question_that_makes_no_sense_is_refused(served: Served, query: str) -> None:
    code, _, text = served.ask(f"/status?{query}")
    assert (code, text) == (400, "revision and wait must be numbers\n")


def test_an_order_reaches_the_agent(served: Served) -> None:
    order = AttemptOrder(job_uid=UID, attempt=4)
    assert served.ask("/attempt", "POST", order.to_json())[0] == 200
    assert served.agent.orders == [order]


def test_an_order_for_another_job_is_refused(served: Served) -> None:
    """The address that the operator knows may have come to another job's pod."""
    order = AttemptOrder(job_uid="somebody-else", attempt=4)
    code, _, text = served.ask("/attempt", "POST", order.to_json())
    assert (code, text) == (409, "this agent works for another job\n")


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"jobUid": "x", "attempt": 0}', "x" * 2000])
def test_what_is_no_order_is_refused(served: Served, body: str) -> None:
    assert served.ask("/attempt", "POST", body)[0] == 400
    assert not served.agent.orders


def test_one_connection_serves_many_questions(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
    connection.close()


def test_a_client_that_says_nothing_delays_no_other(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        assert served.ask("/healthz")[0] == 200


def test_a_probe_that_breaks_off_leaves_no_trace_in_the_log_of_the_training(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", served.port))
        # On closing, send a reset in place of an orderly end.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert served.ask("/healthz")[0] == 200
    wait_until(lambda: threading.active_count() <= before, "all handlers are through")
    said: Any = capfd.readouterr()
    assert said.err == ""
