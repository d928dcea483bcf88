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

from ddp_agent.contract import AgentPhase, AgentStatus
from ddp_agent.server import AgentServer
from tests.unit.agent_support import beat, wait_until
from tests.unit.support import word


@dataclass
class Served:
    """A server, and what it tells of."""

    status: AgentStatus
    alive: bool = True
    port: int = 0

    def ask(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path)
        answer = connection.getresponse()
        found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        connection.close()
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One for all tests: a server takes its time to close."""
    found = Served(word())
    running = AgentServer("127.0.0.1", 0, lambda: found.status, lambda: found.alive)
    found.port = running.port
    running.start()
    yield found
    running.close()


@pytest.fixture
def served(server: Served) -> Served:
    server.status = word(1, attempt=3, phase="Starting", ranks=[beat()])
    server.alive = True
    return server


@pytest.mark.parametrize("phase", list(AgentPhase))
def test_a_node_is_ready_only_while_it_trains(served: Served, phase: AgentPhase) -> None:
    served.status = word(1, attempt=3, phase=phase)
    ready = phase is AgentPhase.TRAINING
    code, _, text = served.ask("/readyz")
    assert code == (200 if ready else 503)
    assert text == ("ok\n" if ready else f"attempt 3 is {phase}\n")


def test_a_loop_that_hangs_is_not_healthy(served: Served) -> None:
    assert served.ask("/healthz")[0] == 200
    served.alive = False
    assert served.ask("/healthz")[::2] == (503, "the agent's loop hangs\n")


def test_the_status_is_the_contracts_document(served: Served) -> None:
    code, kind, text = served.ask("/status")
    assert (code, kind) == (200, "application/json")
    assert AgentStatus.model_validate_json(text) == served.status
    assert json.loads(text)["nodeIndex"] == 1


def test_other_paths_and_methods_are_refused(served: Served) -> None:
    assert served.ask("/")[0] == 404
    assert served.ask("/status", "POST")[0] == 501


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
