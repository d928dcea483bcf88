"""Start barrier: no node starts torchrun before the agents of all members are ready.

A pod may wait for days for a free GPU or for its image, but torchrun's rendezvous has a timeout. So
the agents of the members meet first, at the first member's agent, without the operator or the API
server:

1. Each other agent (`barrier_client`) connects to the first member's agent, which sends a random
challenge.
2. The agent answers with an arrival message: job, attempt, members, node and a random name of its
    process, signed together with the challenge. The connection stays open.
3. Once all members have arrived for the same attempt, the first member's agent sends a start
message on all connections, and all agents start torchrun at the same time.
4. An agent that connects again after the start receives the start message again if it has the same
name. An agent with a new name has replaced an agent of the attempt. The running torchrun processes
cannot accept the new agent's processes, so the first member's agent ends the attempt
(`replaced_node`). The same holds for a node that is not a member, because an older operator has
ordered all nodes.

Other agents also use this port for notices of an unread status (`unread_status`).

Process: agent of the first member (loop, without a thread).
"""

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from ddp_agent.clock import TICK_SECONDS, Ticker
from ddp_agent.members import Members
from ddp_agent.network.arrivals import Arrival, keep_alive, send_challenge
from ddp_agent.network.barrier_client import START, StartBarrier
from ddp_agent.network.waits import Obstacle, late_nodes
from ddp_wire.node_ranges import MOST_NODES
from ddp_wire.processes import describe_open_files

_log = logging.getLogger("ddp_agent")

_NO_FILES = {errno.EMFILE, errno.ENFILE}
_MAX_ARRIVAL_BYTES = 512
SPARE_CONNECTIONS = 64
"""Number of connections beyond one per node. When all are in use, the oldest one without an arrival
is closed."""
_ARRIVAL_SECONDS = 5.0
"""Maximum seconds after which a connection without an arrival is closed."""
_ANSWER_SECONDS = 0.25
"""Seconds for the answer to the challenge. Meanwhile no newer connection displaces the
connection."""
_FULL_SECONDS = 1.0
"""Seconds for which the server accepts no connection when the process has no free file
descriptor."""
_REMEMBERED = 4096
"""Maximum number of replaced agents that the server remembers."""


@dataclass(eq=False)
class _Connection:
    """Connection from one waiting agent."""

    socket: socket.socket
    since: float
    """Monotonic seconds at which the connection was accepted."""
    challenge: str
    """Random text that the signature of the arrival must cover."""
    received: bytes = b""
    arrival: Arrival | None = None


class BarrierServer(StartBarrier):
    """First member's side of the barrier. It waits for all other members, then starts them."""

    def __init__(
        self,
        bind: str,
        port: int,
        job_uid: str,
        nodes: int,
        on_unread: Callable[[], None] = lambda: None,
        *,
        secret: str = "",
    ) -> None:
        """Listen for the agents of the other nodes.

        Args:
            bind: Address, or "" for all addresses.
            port: Port, or 0 for any free one.
            job_uid: UID of the job. Agents of other jobs are refused.
            nodes: Number of nodes of the job, all of them members until `expect` names others.
            on_unread: Function that is called for each notice of another node's unread status.
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
        self._job_uid, self._others, self._digest = job_uid, frozenset(range(1, nodes)), ""
        self._known: frozenset[int] | None = self._others
        """Nodes whose messages count. None for all that sign with the job's secret."""
        self._on_unread, self._secret, self._warned = on_unread, secret, False
        self._warned_of_files = False
        self._strangers: dict[_Connection, None] = {}
        """Connections without an arrival, the oldest first."""
        self._waiting: dict[int, _Connection] = {}
        """Connection of each node that has arrived."""
        self._newest: dict[int, str] = {}
        """Newest agent of each node."""
        self._former: dict[tuple[int, str], None] = {}
        """Replaced agents by node. One may still run on a node that was cut off."""
        self._accepting_from: float | None = None
        """Monotonic seconds from which connections are accepted again, after a pause."""
        self._started: int | None = None
        self._members: dict[int, str] = {}
        self._replaced: int | None = None

    @property
    def port(self) -> int:
        """Port on which the barrier listens."""
        return int(self._listener.getsockname()[1])

    def expect(self, members: Members) -> None:
        """Set the members of the next attempt."""
        self._others, self._digest = members.nodes - {members.own}, members.digest
        self._known = None if members.are_named else self._others

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Wait until all other members have arrived, then send them the start message."""
        ticker.tick(0.0)
        self._serve(TICK_SECONDS)
        if self.missing(attempt):
            return False
        here = {i: one for i, one in self._waiting.items() if _waits_for(one, attempt)}
        others = here.keys() - self._others
        self._started, self._replaced = attempt, min(others, default=None)
        waiting = {i: one for i, one in here.items() if i in self._others}
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
        for one in [*self._strangers, *self._waiting.values()]:
            self._close(one)
        self._selector.close()
        self._listener.close()

    def obstacle(self, attempt: int) -> Obstacle | None:
        """Return the nodes that have not connected as an obstacle. Their pods may not run yet."""
        return late_nodes(self.port, self.missing(attempt))

    def missing(self, attempt: int) -> list[int]:
        """Return the members whose agents do not yet wait for the same attempt and members."""
        waiting = (i for i, one in self._waiting.items() if _waits_for(one, attempt, self._digest))
        return sorted(self._others.difference(waiting))

    def _serve(self, seconds: float) -> None:
        """Accept connections and read messages, until a message arrives or the time has passed."""
        now = time.monotonic()
        if self._accepting_from is not None and now >= self._accepting_from:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accepting_from = None
        for one in list(self._strangers):
            if one.since + _ARRIVAL_SECONDS > now:
                break
            self._close(one)
        ready = [key for key, _ in self._selector.select(seconds)]
        for key in ready:
            if key.data is not None and key.data.socket.fileno() >= 0:
                self._read(key.data)
        # Accepting may close connections, so those that have sent something are read before.
        if any(key.data is None for key in ready):
            self._accept(now)

    def _accept(self, now: float) -> None:
        full = len(self._strangers) + len(self._waiting) >= len(self._others) + SPARE_CONNECTIONS
        if full and self._strangers and not self._displace_oldest(now):
            return
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_FILES:
                self._make_room(now)
            return  # Otherwise the client has gone.
        accepted.setblocking(False)
        keep_alive(accepted)
        one = _Connection(accepted, now, send_challenge(accepted))
        self._strangers[one] = None
        self._selector.register(accepted, selectors.EVENT_READ, one)

    def _make_room(self, now: float) -> None:
        """Close the oldest connection without an arrival, or else stop accepting for a while."""
        if self._strangers:
            self._displace_oldest(now)
            return
        self._pause(now + _FULL_SECONDS)
        if not self._warned_of_files:
            _log.error(
                "the start barrier cannot accept the agents of all %d other nodes: %s",
                len(self._others),
                describe_open_files(),
            )
        self._warned_of_files = True

    def _displace_oldest(self, now: float) -> bool:
        """Close the oldest connection without an arrival, or wait while it may still answer."""
        oldest = next(iter(self._strangers))
        if oldest.since + _ANSWER_SECONDS > now:
            self._pause(oldest.since + _ANSWER_SECONDS)
            return False
        self._close(oldest)
        return True

    def _pause(self, until: float) -> None:
        """Accept no connections until the given time, in monotonic seconds."""
        self._selector.unregister(self._listener)
        self._accepting_from = until

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
        """Record an arrival. Refuse other jobs, unsigned messages, unknown nodes, old attempts."""
        try:
            arrival = Arrival.model_validate_json(one.received)
        except ValidationError:
            self._close(one)
            return
        index, name = arrival.node_index, (arrival.node_index, arrival.agent)
        known = arrival.job_uid == self._job_uid and self._is_known(index)
        if known and not arrival.is_genuine(self._secret, one.challenge):
            self._warn_of_stranger(arrival)
            known = False
        past = self._started is not None and arrival.attempt < self._started
        if not known or ((past or name in self._former) and not arrival.unread):
            self._close(one)
        elif arrival.unread:
            self._on_unread()
            self._close(one)
        else:
            self._arrive(one, arrival)

    def _arrive(self, one: _Connection, arrival: Arrival) -> None:
        """Record that a node waits, or repeat the start message if the node has missed it."""
        index = arrival.node_index
        if (older := self._waiting.get(index)) is not None:
            self._close(older)  # Its agent has reconnected, or was replaced.
        previous = self._newest.get(index, arrival.agent)
        if previous != arrival.agent:
            self._former[index, previous] = None
            if len(self._former) > _REMEMBERED:
                del self._former[next(iter(self._former))]
        self._newest[index] = arrival.agent
        one.arrival = arrival
        del self._strangers[one]
        self._waiting[index] = one
        if arrival.attempt != self._started:
            return
        if self._members.get(index) == arrival.agent:
            self._start(one)  # The connection broke before the start reached the agent.
        else:
            self._replaced = index

    def _is_known(self, index: int) -> bool:
        return 0 <= index < MOST_NODES if self._known is None else index in self._known

    def _warn_of_stranger(self, arrival: Arrival) -> None:
        """Log the first message about each node that lacks the job's signature."""
        if not self._warned:
            _log.warning(
                "the start barrier ignores a message that claims to be from node %d: it is not"
                " signed with this job's secret, or was replayed",
                arrival.node_index,
            )
        self._warned = True

    def _start(self, one: _Connection) -> None:
        with contextlib.suppress(OSError):
            one.socket.send(START)
        self._close(one)

    def _close(self, one: _Connection) -> None:
        self._strangers.pop(one, None)
        if one.arrival and self._waiting.get(one.arrival.node_index) is one:
            del self._waiting[one.arrival.node_index]
        self._selector.unregister(one.socket)
        one.socket.close()


def _waits_for(one: _Connection, attempt: int, digest: str | None = None) -> bool:
    """Return whether an agent waits for an attempt, with the members of a given digest."""
    arrival = one.arrival
    if arrival is None or arrival.attempt != attempt:
        return False
    return digest is None or (arrival.members or "") == digest
