"""Tests that an agent serves only requests signed with the secret in its pod's spec."""

import contextlib
import http.client
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ddp_wire.messages import AgentPhase, AgentStatus, AttemptOrder
from ddp_wire.signatures import (
    NONCE_HEADER,
    SIGNATURE_HEADER,
    is_genuine,
    random_text,
    rendezvous_id,
    sign_answer,
    sign_request,
)
from tests.agent.support import FakeAgent
from tests.operator.support import UID, agent_status

SECRET = random_text()
RUN_ID = rendezvous_id(random_text(), UID, 1)
OPEN_PATHS = {"/status": 403, "/status?revision=-1&wait=0": 403, "/metrics": 200, "/readyz": 200}
"""Paths with the status code that an unsigned request gets."""
ORDER = AttemptOrder(job_uid=UID, attempt=1).to_json()


def training_status() -> AgentStatus:
    return agent_status(1, phase="Training", command=["torchrun", f"--rdzv-id={RUN_ID}"])


@dataclass
class Guarded:
    """Server of a fake agent with a secret."""

    agent: FakeAgent
    port: int

    def request(
        self, method: str, target: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, str | None]:
        """Return the status code, the body and the signature of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, target, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.getheader(SIGNATURE_HEADER)
        connection.close()
        return found


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    agent = FakeAgent(training_status())
    server = agent.server(secret=SECRET)
    server.start()
    yield Guarded(agent, server.port)
    server.close()


def signed(method: str, target: str, body: str = "", nonce: str = "n1") -> dict[str, str]:
    signature = sign_request(SECRET, nonce, method, target, body.encode())
    return {NONCE_HEADER: nonce, SIGNATURE_HEADER: signature}


def test_signed_request_gets_a_signed_answer(guarded: Guarded) -> None:
    target = "/status?revision=-1&wait=0"
    code, body, signature = guarded.request("GET", target, headers=signed("GET", target))
    assert code == 200
    assert is_genuine(signature, sign_answer(SECRET, "n1", 200, body))
    assert not is_genuine(signature, sign_answer(SECRET, "n2", 200, body))
    assert guarded.request("POST", "/attempt", ORDER, signed("POST", "/attempt", ORDER))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed("GET", "/status"),
        signed("POST", "/attempt", AttemptOrder(job_uid=UID, attempt=2).to_json()),
        signed("POST", "/attempt", ORDER, nonce=""),
        signed("POST", "/attempt", ORDER) | {NONCE_HEADER: "n2"},
        signed("POST", "/attempt", ORDER) | {SIGNATURE_HEADER: "f" * 64},
    ],
    ids=["none", "other request", "other order", "no nonce", "other nonce", "invented"],
)
def test_order_without_a_valid_signature_is_refused(
    guarded: Guarded, headers: dict[str, str]
) -> None:
    guarded.agent.orders.received.clear()
    code, body, _ = guarded.request("POST", "/attempt", ORDER, headers)
    assert code == 403
    assert body == b"the request must be signed with the secret in the pod's spec\n"
    assert guarded.agent.orders.received == []


def test_status_request_needs_a_signature_and_probes_need_none(guarded: Guarded) -> None:
    """The status contains the id of the rendezvous, which must stay secret."""
    _, told, _ = guarded.request("GET", "/status", headers=signed("GET", "/status"))
    assert RUN_ID.encode() in told
    answers = {path: guarded.request("GET", path) for path in OPEN_PATHS}
    assert {path: code for path, (code, _, _) in answers.items()} == OPEN_PATHS
    assert not [path for path, (_, body, _) in answers.items() if RUN_ID.encode() in body]


def test_agent_without_a_secret_serves_its_status_to_anyone() -> None:
    """Pods that an older operator created have no secret."""
    agent = FakeAgent(training_status())
    server = agent.server()
    server.start()
    code, body, _ = Guarded(agent, server.port).request("GET", "/status")
    server.close()
    assert (code, RUN_ID.encode() in body) == (200, True)


@pytest.mark.parametrize("requests", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_agent_survives_random_requests(guarded: Guarded, requests: int) -> None:
    chance = random.Random(0)  # noqa: S311
    heads = (b"GET /status", b"POST /attempt", b"GET /", b"PUT /attempt", b"\x16\x03\x01", b"")
    for _ in range(requests):
        noise = chance.randbytes(chance.randrange(200))
        line = chance.choice(heads) + b" HTTP/1.1\r\n"
        with (
            contextlib.suppress(ConnectionError),  # The agent may close it before the end.
            socket.create_connection(("127.0.0.1", guarded.port), timeout=10) as connection,
        ):
            connection.sendall(line + noise + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    guarded.agent.cell.enter(AgentPhase.FAILED, 5.0)
    assert guarded.request("GET", "/readyz")[0] == 503
    assert guarded.request("POST", "/attempt", ORDER, signed("POST", "/attempt", ORDER))[0] == 200
