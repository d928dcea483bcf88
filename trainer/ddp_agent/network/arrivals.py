"""Messages from a job's agents to node 0's agent, and their connections.

Node 0's agent sends a challenge first: one line of random text. The signature of the answer covers
the challenge, so a recorded message is invalid on another connection.

Process: agent (loop; thread of the notifier).
"""

import contextlib
import socket

from pydantic import BaseModel, ConfigDict, Field

from ddp_wire.signatures import is_genuine, random_text, sign_arrival

_CONNECT_SECONDS = 0.5
"""Timeout of one connection attempt in seconds, because the name may still resolve to a deleted
pod."""
_KEEPALIVE_SECONDS = 5
_CHALLENGE_BYTES = len(random_text()) + 1


class Arrival(BaseModel):
    """Message with which an agent tells node 0's agent that it is ready for an attempt."""

    model_config = ConfigDict(populate_by_name=True)

    job_uid: str
    attempt: int
    node_index: int
    agent: str = ""
    """Random name of the agent process, or "" in a notice. The agent of a new pod has a new
    name."""
    members: str | None = None
    """Digest of the members that the order names. Absent in an order without members, and in older
    agents."""
    unread: bool = Field(default=False, alias="news")  # Older agents send and sign "news".
    """Whether this message is a notice of an unread status. Then the agent does not wait for a
    start."""
    signature: str = ""
    """Signature with the job's secret, or "" in a job of an older operator."""

    def send(self, link: socket.socket, secret: str) -> None:
        """Wait for the challenge, then send this message, signed if the job has a secret.

        Raises:
            TimeoutError: No challenge arrived within the timeout of the socket.
            OSError: The connection broke.
        """
        challenge = _received_challenge(link)
        signature = self._expected_signature(secret, challenge) if secret else ""
        signed = self.model_copy(update={"signature": signature})
        link.sendall(signed.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")

    def is_genuine(self, secret: str, challenge: str) -> bool:
        """Return whether the message answers this challenge with the job's signature.

        In a job without a secret, every message counts as genuine.
        """
        return not secret or is_genuine(self.signature, self._expected_signature(secret, challenge))

    def _expected_signature(self, secret: str, challenge: str) -> str:
        body = self.model_dump_json(
            by_alias=True, exclude={"signature"}, exclude_none=True
        ).encode()
        return sign_arrival(secret, challenge, body)


def send_challenge(link: socket.socket) -> str:
    """Send a new challenge on a new connection without blocking. Return the challenge."""
    challenge = random_text()
    with contextlib.suppress(OSError):  # The peer has gone, which the next read shows.
        link.send(challenge.encode() + b"\n")
    return challenge


def _received_challenge(link: socket.socket) -> str:
    line = link.recv(_CHALLENGE_BYTES)
    if len(line) < _CHALLENGE_BYTES:  # So few bytes arrive at once.
        raise ConnectionError("node 0's agent has closed the connection")
    return line[:-1].decode("ascii", "replace")


def connected(address: tuple[str, int]) -> socket.socket:
    """Return a new connection to the start barrier at an address.

    Raises:
        OSError: Node 0's agent does not accept it within 0.5 s.
    """
    try:
        return socket.create_connection(address, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:  # It would read as "no answer yet".
        raise ConnectionError(str(error)) from error


def keep_alive(link: socket.socket) -> None:
    """Configure a connection to detect a lost peer within seconds, even after days without data."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
