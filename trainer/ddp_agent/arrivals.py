"""Messages of the agents of a job to node 0's agent, and the connections for them."""

import socket

from pydantic import BaseModel

from ddp_wire.signatures import is_genuine, sign_arrival

_CONNECT_SECONDS = 0.5
"""Timeout of one connection attempt: the name may still resolve to a deleted pod."""
_KEEPALIVE_SECONDS = 5


class Arrival(BaseModel):
    """Message of a node's agent to node 0's agent: it waits for the start of an attempt."""

    job_uid: str
    attempt: int
    node_index: int
    agent: str = ""
    """Random name of the agent process. A replaced pod has another one. With `news` a random name
    of the message, or "" from an older agent."""
    news: bool = False
    """The agent does not wait. It has a status that nobody has read."""
    signature: str = ""
    """Signature with the job's secret, or "" in a job of an older operator."""

    def send(self, link: socket.socket, secret: str) -> None:
        """Sign this message with the job's secret, if it has one, and send it.

        Raises:
            OSError: The connection broke.
        """
        signature = self._expected_signature(secret) if secret else ""
        signed = self.model_copy(update={"signature": signature})
        link.sendall(signed.model_dump_json().encode() + b"\n")

    def is_genuine(self, secret: str) -> bool:
        """Return whether an agent of the job has sent this message. Without a secret, all count."""
        return not secret or is_genuine(self.signature, self._expected_signature(secret))

    def _expected_signature(self, secret: str) -> str:
        body = self.model_dump_json(exclude={"signature"}).encode()
        return sign_arrival(secret, body)


def connected(address: tuple[str, int]) -> socket.socket:
    """Return a connection to the barrier at an address.

    Raises:
        OSError: Node 0's agent does not accept it within 0.5 s.
    """
    try:
        return socket.create_connection(address, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:  # It would read as "no answer yet".
        raise ConnectionError(str(error)) from error


def keep_alive(link: socket.socket) -> None:
    """Detect a lost peer within seconds, although the connection is idle for days."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
