"""Why a node cannot join the others: what its agent waits for, and for how long already."""

import socket
from collections.abc import Sequence
from typing import NamedTuple

from ddp_agent.clock import Clock

REPORT_SECONDS = 15.0
"""Seconds after which the agent reports what it waits for."""
_NAMED = 8
"""Most nodes that a message names."""
_UNRESOLVED = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Obstacle(NamedTuple):
    """Reason why a node waits for another one."""

    text: str
    is_network: bool = False
    """Whether the network is the reason, and not a pod that does not run yet."""


def unreachable(address: tuple[str, int], error: OSError) -> Obstacle:
    """Return the obstacle of a failed connection to node 0.

    A name without an address, and a refused connection, are those of a pod that starts.
    """
    host, port = address
    starting = isinstance(error, ConnectionRefusedError) or (
        isinstance(error, socket.gaierror) and error.errno in _UNRESOLVED
    )
    reason = error.strerror or str(error) or type(error).__name__
    return Obstacle(f"cannot reach {host} on port {port}: {reason}", not starting)


def late_nodes(port: int, nodes: Sequence[int]) -> Obstacle:
    """Return the obstacle of node 0 while nodes have not connected. Their pods may not run yet."""
    named = ", ".join(map(str, nodes[:_NAMED]))
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return Obstacle(f"waits on port {port} for the agents of nodes {named}{more}")


class WaitWatch:
    """Time that an obstacle has lasted without a break."""

    def __init__(self, clock: Clock, limit_seconds: float | None) -> None:
        """Start to watch.

        Args:
            clock: Clock of the agent's loop.
            limit_seconds: Longest wait because of the network. None without a limit.
        """
        self._now, self._limit = clock.monotonic, limit_seconds
        self._obstacle: Obstacle | None = None
        self._since = 0.0

    def look(self, obstacle: Obstacle | None) -> str | None:
        """Take the present obstacle. Return its text once it has lasted for some seconds."""
        before, now = self._obstacle, self._now()
        if before is None or obstacle is None or before.is_network != obstacle.is_network:
            self._since = now
        self._obstacle = obstacle
        return obstacle.text if obstacle and now - self._since >= REPORT_SECONDS else None

    @property
    def overdue(self) -> str | None:
        """Sentence about an obstacle of the network that has lasted too long. None otherwise."""
        waited = self._now() - self._since
        if self._obstacle is None or not self._obstacle.is_network or self._limit is None:
            return None
        return f"{self._obstacle.text}, for {waited:.0f} s" if waited >= self._limit else None
