"""The start barrier on all members except the first, and the interface of both sides.

Process: agent of every other member (loop).
"""

import socket
import uuid
from abc import ABC, abstractmethod

from ddp_agent.clock import TICK_SECONDS, Ticker
from ddp_agent.members import Members
from ddp_agent.network.arrivals import Arrival, connected, keep_alive
from ddp_agent.network.waits import Obstacle, unreachable

START = b"start\n"


class StartBarrier(ABC):
    """One node's side of the start barrier. Only the agent's loop calls it."""

    def expect(self, members: Members) -> None:  # noqa: B027 (a barrier may need no members)
        """Set the members of the next attempt."""

    @abstractmethod
    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Wait for the start of an attempt, for about one tick. Return whether it starts now."""

    def replaced_node(self) -> int | None:
        """Return a node whose agent was replaced after the start of the attempt, or None.

        The running torchrun processes of the attempt cannot accept the new agent's processes.
        """
        return None

    @abstractmethod
    def obstacle(self, attempt: int) -> Obstacle | None:
        """Return the reason why this node still waits for the start, or None."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


class BarrierClient(StartBarrier):
    """Side of the barrier on every other member: it waits for the first member's start message."""

    def __init__(
        self, host: str, port: int, job_uid: str, node_index: int, *, secret: str = ""
    ) -> None:
        """Create a client for the barrier at an address. It connects when it waits."""
        self._secret, self._digest = secret, ""
        self._address, self._job_uid, self._node_index = (host, port), job_uid, node_index
        self._agent = uuid.uuid4().hex
        self._socket: socket.socket | None = None
        self._attempt, self._announced = 0, False
        self._obstacle: Obstacle | None = None

    def expect(self, members: Members) -> None:
        """Set the members of the next attempt, and connect to the first member."""
        self._digest = members.digest
        if self._address[0] != members.host:
            self.close()
            self._address = (members.host, self._address[1])

    def wait(self, attempt: int, ticker: Ticker) -> bool:
        """Announce this node to the first member's agent, and wait for the start message."""
        if self._attempt != attempt:
            self.close()
        self._attempt = attempt
        try:
            link = self._socket or self._connect()
            ticker.tick(0.0)
            link.settimeout(TICK_SECONDS)
            if not self._announced:
                self._announce(link, attempt)
            answer = link.recv(len(START))
        except TimeoutError:
            return False
        except OSError as error:
            answer = b""
            self._obstacle = unreachable(self._address, error) if self._socket is None else None
        self.close()
        if not answer:
            ticker.tick()  # Node 0 does not listen yet, or has ended.
        return answer == START

    def obstacle(self, attempt: int) -> Obstacle | None:
        """Return the reason why this node cannot reach the first member's agent, or None."""
        return self._obstacle if self._socket is None and attempt == self._attempt else None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._announced = None, False

    def _connect(self) -> socket.socket:
        """Connect to the first member's agent.

        Raises:
            OSError: The agent does not accept the connection.
        """
        link = connected(self._address)
        self._socket = link
        keep_alive(link)
        return link

    def _announce(self, link: socket.socket, attempt: int) -> None:
        """Send this node's arrival message as the answer to the challenge.

        Raises:
            TimeoutError: The challenge has not arrived yet.
            OSError: The connection broke.
        """
        arrival = Arrival(
            job_uid=self._job_uid,
            attempt=attempt,
            node_index=self._node_index,
            agent=self._agent,
            members=self._digest or None,
        )
        arrival.send(link, self._secret)
        self._announced = True
