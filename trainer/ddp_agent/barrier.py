"""Start barrier: no node starts torchrun before the agents of all nodes wait for the attempt.

A pod may wait for days for a free GPU or for its image, but torchrun's rendezvous has a timeout. So
node 0's agent counts the agents of the other nodes, and all start torchrun at the same time. The
agents meet by themselves: the barrier needs neither the operator nor the API server.

Node 0's agent also hears here of a status of another node that nobody has read (`doorbell`).
"""

import contextlib
import logging
import selectors
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from ddp_agent.clock import TICK_SECONDS, Ticker
from ddp_agent.config import AgentConfig
from ddp_wire.signatures import is_genuine, sign_arrival

_log = logging.getLogger("ddp_agent")

START = b"start\n"
_MAX_ARRIVAL_BYTES = 512
_SPARE_CONNECTIONS = 64
"""Connections beyond one per node: a replaced pod's connection may outlive it for a while."""
_CONNECT_SECONDS = 0.5
"""Timeout of one connection attempt: the name may still resolve to a deleted pod."""
_KEEPALIVE_SECONDS = 5


class Arrival(BaseModel):
    """Message of a node's agent to node 0's agent: it waits for the start of an attempt."""

    job_uid: str
    attempt: int
    node_index: int
    agent: str = ""
    """Random name of the agent process. A replaced pod has another one."""
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


@dataclass(eq=False)
class _Connection:
    """Connection of one waiting agent."""

    socket: socket.socket
    received: bytes = b""
    arrival: Arrival | None = None


class StartBarrier(ABC):
    """One node's side of the barrier. Only the agent's loop calls it, so it needs no thread."""

    @abstractmethod
    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Wait for the start of an attempt, for about one tick. Return whether it starts now."""

    def replaced_node(self) -> int | None:
        """Return a node whose agent was replaced after the start of the attempt, or None.

        The torchrun processes of the attempt can never meet the new one.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


class BarrierServer(StartBarrier):
    """Node 0's side: it counts the other nodes and sends them the start."""

    def __init__(
        self,
        bind: str,
        port: int,
        job_uid: str,
        nodes: int,
        on_news: Callable[[], None] = lambda: None,
        *,
        secret: str = "",
    ) -> None:
        """Listen for the agents of the other nodes.

        Args:
            bind: Address, or "" for all addresses.
            port: Port, or 0 for any free one.
            job_uid: UID of the job. Agents of other jobs are refused.
            nodes: Number of nodes of the job.
            on_news: Called when another node has a status that nobody has read.
            secret: Secret of the job, or "" to accept messages without a signature.

        Raises:
            OSError: The port is not free.
        """
        dual = not bind and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in bind else socket.AF_INET
        self._listener = socket.create_server(
            (bind, port), family=family, dualstack_ipv6=dual, backlog=1024
        )
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._job_uid, self._others = job_uid, frozenset(range(1, nodes))
        self._on_news, self._secret, self._warned = on_news, secret, False
        self._connections: set[_Connection] = set()
        self._started: int | None = None
        self._members: dict[int, str] = {}
        self._replaced: int | None = None

    @property
    def port(self) -> int:
        """Port on which the barrier listens."""
        return int(self._listener.getsockname()[1])

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Wait for the agents of the other nodes. Send them the start once all have arrived."""
        ticker.tick(0.0)
        self._serve(TICK_SECONDS)
        waiting = {
            one.arrival.node_index: one
            for one in self._connections
            if one.arrival is not None and one.arrival.attempt == attempt
        }
        if waiting.keys() != self._others:
            return False
        self._started, self._replaced = attempt, None
        self._members = {i: one.arrival.agent for i, one in waiting.items() if one.arrival}
        for one in waiting.values():
            self._start(one)
        return True

    def replaced_node(self) -> int | None:
        """Return a node whose agent was replaced after the start of the attempt, or None."""
        self._serve(0.0)
        return self._replaced

    def close(self) -> None:
        """Close all connections."""
        for one in list(self._connections):
            self._close(one)
        self._selector.close()
        self._listener.close()

    def _serve(self, seconds: float) -> None:
        """Accept connections and read messages, until something arrives or the time is up."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return  # The client has gone.
        if len(self._connections) >= len(self._others) + _SPARE_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        _keep_alive(accepted)
        one = _Connection(accepted)
        self._connections.add(one)
        self._selector.register(accepted, selectors.EVENT_READ, one)

    def _read(self, one: _Connection) -> None:
        try:
            chunk = one.socket.recv(_MAX_ARRIVAL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        one.received += chunk
        if not chunk or one.arrival is not None or len(one.received) > _MAX_ARRIVAL_BYTES:
            self._close(one)
        elif one.received.endswith(b"\n"):
            self._record(one)

    def _record(self, one: _Connection) -> None:
        """Record an arrival. Refuse those of other jobs, strangers, unknown nodes and the past."""
        try:
            arrival = Arrival.model_validate_json(one.received)
        except ValidationError:
            self._close(one)
            return
        known = arrival.job_uid == self._job_uid and arrival.node_index in self._others
        if known and not arrival.is_genuine(self._secret):
            self._warn_of_stranger(arrival)
            known = False
        if known and arrival.news:
            self._on_news()
            self._close(one)
            return
        if not known or (self._started is not None and arrival.attempt < self._started):
            self._close(one)
            return
        for older in self._connections_of(arrival.node_index):
            self._close(older)  # Its agent has reconnected, or was replaced.
        one.arrival = arrival
        if arrival.attempt != self._started:
            return
        if self._members[arrival.node_index] == arrival.agent:
            self._start(one)  # The connection broke before the start reached the agent.
        else:
            self._replaced = arrival.node_index

    def _warn_of_stranger(self, arrival: Arrival) -> None:
        """Log the first message in the name of a node that lacks the job's signature."""
        if not self._warned:
            _log.warning(
                "the start barrier ignores a message in the name of node %d: it is not signed with"
                " this job's secret",
                arrival.node_index,
            )
        self._warned = True

    def _connections_of(self, node_index: int) -> list[_Connection]:
        return [c for c in self._connections if c.arrival and c.arrival.node_index == node_index]

    def _start(self, one: _Connection) -> None:
        with contextlib.suppress(OSError):
            one.socket.send(START)
        self._close(one)

    def _close(self, one: _Connection) -> None:
        self._connections.discard(one)
        self._selector.unregister(one.socket)
        one.socket.close()


class BarrierClient(StartBarrier):
    """Side of every other node: it waits for node 0's start."""

    def __init__(
        self, host: str, port: int, job_uid: str, node_index: int, *, secret: str = ""
    ) -> None:
        """Create a client for the barrier at an address. It connects when it waits."""
        self._secret = secret
        self._address, self._job_uid, self._node_index = (host, port), job_uid, node_index
        self._agent = uuid.uuid4().hex
        self._socket: socket.socket | None = None
        self._attempt = 0

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Announce this node to node 0, and wait for the start."""
        if self._attempt != attempt:
            self.close()
        self._attempt = attempt
        try:
            link = self._socket or self._connect(attempt)
            ticker.tick(0.0)
            link.settimeout(TICK_SECONDS)
            answer = link.recv(len(START))
        except TimeoutError:
            return False
        except OSError:
            answer = b""
        self.close()
        if not answer:
            ticker.tick()  # Node 0 does not listen yet, or has ended.
        return answer == START

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, attempt: int) -> socket.socket:
        """Connect and announce this node.

        Raises:
            OSError: Node 0's agent does not accept the connection.
        """
        link = connected(self._address)
        self._socket = link
        _keep_alive(link)
        arrival = Arrival(
            job_uid=self._job_uid,
            attempt=attempt,
            node_index=self._node_index,
            agent=self._agent,
        )
        arrival.send(link, self._secret)
        return link


def connected(address: tuple[str, int]) -> socket.socket:
    """Return a connection to the barrier at an address.

    Raises:
        OSError: Node 0's agent does not accept it within 0.5 s.
    """
    try:
        return socket.create_connection(address, timeout=_CONNECT_SECONDS)
    except TimeoutError as error:  # It would read as "no answer yet".
        raise ConnectionError(str(error)) from error


def _keep_alive(link: socket.socket) -> None:
    """Detect a lost peer within seconds, although the connection is idle for days."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def start_barrier(
    config: AgentConfig, on_news: Callable[[], None] = lambda: None
) -> StartBarrier | None:
    """Return this node's side of the barrier, or None for a job with one node.

    Node 0's side calls `on_news` when another node has a status that nobody has read.

    Raises:
        OSError: The port is not free.
    """
    if config.nodes == 1:
        return None
    if config.node_index == 0:
        return BarrierServer(
            config.bind,
            config.barrier_port,
            config.job_uid,
            config.nodes,
            on_news,
            secret=config.job_secret,
        )
    return BarrierClient(
        config.rendezvous_host,
        config.barrier_port,
        config.job_uid,
        config.node_index,
        secret=config.job_secret,
    )
