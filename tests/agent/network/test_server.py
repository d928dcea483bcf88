"""The agent's HTTP endpoints, over real connections."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder, InspectionRequest
from ddp_wire.signatures import NONCE_HEADER, SIGNATURE_HEADER, random_text, sign_request
from tests.agent.support import FakeAgent, few_files, heartbeat, wait_until
from tests.operator.support import UID, agent_status

SECRET = random_text()


@dataclass
class Served:
    """Running server of a fake agent."""

    agent: FakeAgent
    port: int = 0

    def request(self, path: str, method: str = "GET", body: str = "") -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body=body or None)
        answer = connection.getresponse()
        found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        connection.close()
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One server for all tests, because closing it takes time."""
    found = Served(FakeAgent())
    running = found.agent.server()
    found.port = running.port
    running.start()
    yield found
    running.close()


@pytest.fixture
def served(server: Served) -> Served:
    server.agent.cell.set(agent_status(1, attempt=3, phase="Starting", ranks=[heartbeat()]))
    server.agent.alive = True
    server.agent.orders.received.clear()
    server.agent.questions.clear()
    return server


@pytest.mark.parametrize("phase", list(AgentPhase))
def test_readyz_succeeds_only_while_the_node_trains(served: Served, phase: AgentPhase) -> None:
    served.agent.cell.set(agent_status(1, attempt=3, phase=phase))
    ready = phase is AgentPhase.TRAINING
    code, _, text = served.request("/readyz")
    assert code == (200 if ready else 503)
    assert text == ("ok\n" if ready else f"attempt 3 is {phase}\n")


def test_healthz_fails_while_the_loop_hangs(served: Served) -> None:
    assert served.request("/healthz")[0] == 200
    served.agent.alive = False
    assert served.request("/healthz")[::2] == (503, "the agent's loop hangs\n")


def test_metrics_are_served_as_text(served: Served) -> None:
    code, kind, text = served.request("/metrics")
    assert (code, text) == (200, "metrics 1.0\n")
    assert kind.startswith("text/plain")


def test_status_is_the_document_of_the_contract(served: Served) -> None:
    code, kind, text = served.request("/status")
    assert (code, kind) == (200, "application/json")
    assert AgentStatus.model_validate_json(text) == served.agent.cell.current()
    assert json.loads(text)["nodeIndex"] == 1


def test_other_paths_and_methods_are_rejected(served: Served) -> None:
    assert served.request("/")[0] == 404
    assert served.request("/status", "POST")[0] == 404
    assert served.request("/status", "PUT")[0] == 501


def test_long_poll_returns_once_the_status_changes(served: Served) -> None:
    answers: list[AgentStatus] = []

    def poll() -> None:
        answers.append(
            AgentStatus.model_validate_json(served.request("/status?revision=0&wait=9")[2])
        )

    poller = threading.Thread(target=poll)
    before = served.agent.cell.waits
    poller.start()
    wait_until(lambda: served.agent.cell.waits > before, "the server handles the request")
    assert not answers
    served.agent.cell.enter(AgentPhase.FAILED, 5.0)
    poller.join(timeout=10)
    assert [(a.revision, a.phase) for a in answers] == [(1, AgentPhase.FAILED)]


@pytest.mark.parametrize(
    "query", ["revision=7&wait=20", "revision=0&wait=0", "wait=-3", "wait=nan"]
)
def test_status_request_without_a_wait_returns_at_once(served: Served, query: str) -> None:
    assert served.request(f"/status?{query}")[0] == 200


@pytest.mark.parametrize("query", ["revision=new", "wait=long"])
def test_status_with_an_invalid_query_is_rejected(served: Served, query: str) -> None:
    code, _, text = served.request(f"/status?{query}")
    assert (code, text) == (400, "the parameters revision and wait must be numbers\n")


def test_attempt_order_reaches_the_agent(served: Served) -> None:
    order = AttemptOrder(job_uid=UID, attempt=4)
    assert served.request("/attempt", "POST", order.to_json())[0] == 200
    assert served.agent.orders.received == [order]


def test_attempt_order_for_another_job_is_rejected(served: Served) -> None:
    """The address that the operator knows may now belong to another job's pod."""
    order = AttemptOrder(job_uid="another-job", attempt=4)
    code, _, text = served.request("/attempt", "POST", order.to_json())
    assert code == 409
    assert text == "the order is for another job, or too far ahead of the pod's annotation\n"


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"jobUid": "x", "attempt": 0}', "x" * 2000])
def test_invalid_attempt_order_is_rejected(served: Served, body: str) -> None:
    assert served.request("/attempt", "POST", body)[0] == 400
    assert not served.agent.orders.received


def test_question_of_a_user_reaches_the_agent(served: Served) -> None:
    question = InspectionRequest(job_uid=UID, question="stacks:a")
    assert served.request("/inspection", "POST", question.to_json())[0] == 200
    assert served.agent.questions == [question]
    code, _, text = served.request("/inspection", "POST", '{"jobUid": "x", "question": "stacks:a"}')
    assert (code, text) == (409, "the question is for another job, or unknown to this agent\n")
    assert served.request("/inspection", "POST", "{}")[0] == 400


def test_one_connection_serves_several_requests(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
    connection.close()


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"a" * 20_000, b"HTTP/1.1 431 "),
        (b"GET /healthz HTTP/1.1\r\n" + b"X: aaaaaa\r\n" * 99 * 20, b"HTTP/1.1 431 "),
        (b"GET /" + b"a" * 20_000, b""),
    ],
    ids=["long header", "many headers", "long line"],
)
def test_head_of_a_request_has_a_limit(served: Served, head: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as link:
        link.sendall(head)  # Without its end: the server must not wait for more.
        with suppress(ConnectionResetError):
            assert link.recv(1000).startswith(answer)
    assert served.request("/healthz")[0] == 200


def test_silent_client_does_not_delay_others(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        assert served.request("/healthz")[0] == 200


@pytest.mark.slow
def test_flood_of_connections_delays_no_probe_and_ends_no_request_of_the_operator() -> None:
    """Each connection has a thread, so their number is bounded."""
    agent, before = FakeAgent(), threading.active_count()
    running = agent.server(secret=SECRET)
    running.start()
    place = ("127.0.0.1", running.port)
    poll = http.client.HTTPConnection(*place, timeout=10)
    revision = agent.cell.current().revision
    target = f"/status?revision={revision}&wait=9"
    signature = sign_request(SECRET, "nonce", "GET", target)
    poll.request("GET", target, headers={NONCE_HEADER: "nonce", SIGNATURE_HEADER: signature})
    wait_until(lambda: agent.cell.waits > 0, "the server handles the poll")
    held = [socket.create_connection(place) for _ in range(400)]
    probe = http.client.HTTPConnection(*place, timeout=2)
    probe.request("GET", "/healthz")
    assert probe.getresponse().status == 200
    wait_until(lambda: threading.active_count() < before + 140, "old connections are closed")
    agent.cell.enter(AgentPhase.FAILED, 5.0)
    assert poll.getresponse().status == 200
    for link in held:
        link.close()
    probe.close()
    poll.close()
    running.close()


def test_server_without_free_file_descriptors_closes_the_oldest_unsigned_connection() -> None:
    running = FakeAgent().server()
    running.start()
    idle, probe = (socket.socket() for _ in range(2))
    request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    for link in (idle, probe):
        link.settimeout(10)
    idle.connect(("127.0.0.1", running.port))
    idle.sendall(request)
    assert idle.recv(15) == b"HTTP/1.1 200 OK"
    with few_files():
        probe.connect(("127.0.0.1", running.port))
        probe.sendall(request)
        assert probe.recv(15) == b"HTTP/1.1 200 OK"
    idle.close()
    probe.close()
    running.close()


def test_probe_that_disconnects_early_is_not_logged(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", served.port))
        # Close with a reset instead of an orderly shutdown.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert served.request("/healthz")[0] == 200
    wait_until(lambda: threading.active_count() <= before, "all handlers have ended")
    printed: Any = capfd.readouterr()
    assert printed.err == ""


@pytest.mark.parametrize(
    ("bind", "hosts"),
    [
        ("", ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"]),
    ],
    ids=["all addresses", "one address"],
)
def test_server_listens_on_ipv4_and_ipv6(bind: str, hosts: list[str]) -> None:
    running = FakeAgent().server(bind=bind)
    running.start()
    try:
        for host in hosts:
            connection = http.client.HTTPConnection(host, running.port, timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        running.close()
