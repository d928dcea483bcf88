"""Why a node cannot join the others: what its agent waits for, and for how long already.

Process: agent (loop).
"""

import socket
from collections.abc import Sequence
from typing import NamedTuple

from ddp_agent.clock import Clock

REPORT_SECONDS = 15.0
"""Seconds after which the agent reports what it waits for."""
_NAMED = 8
"""Most nodes that a message names."""
REFUSED_LIMITS = 4
"""Limit while node 0 refuses connections, as a multiple of the limit of the network. Perhaps its
pod pulls its image or runs its init containers, and perhaps a NetworkPolicy rejects connections."""
_UNRESOLVED = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Obstacle(NamedTuple):
    """Reason why a node waits for a peer."""

    text: str
    is_network: bool = False
    """Whether the network is the reason, and not a pod that does not run yet."""
    is_refused: bool = False
    """Whether the connection is refused, by the network or because the pod does not run yet."""


def unreachable(address: tuple[str, int], error: OSError) -> Obstacle:
    """Return the obstacle of a failed connection to node 0.

    A name without an address is that of a pod that starts.
    """
    host, port = address
    starting = isinstance(error, socket.gaierror) and error.errno in _UNRESOLVED
    refused = isinstance(error, ConnectionRefusedError)
    reason = error.strerror or str(error) or type(error).__name__
    text = f"cannot reach {host} on port {port}: {reason}"
    return Obstacle(text, is_network=not (starting or refused), is_refused=refused)


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
            limit_seconds: Longest wait because of the network. A refused connection may last
                `REFUSED_LIMITS` times as long. None without a limit.
        """
        self._now, self._limit = clock.monotonic, limit_seconds
        self._obstacle: Obstacle | None = None
        self._since = 0.0

    def look(self, obstacle: Obstacle | None) -> str | None:
        """Take the present obstacle. Return its text once it has lasted for some seconds."""
        before, now = self._obstacle, self._now()
        if before is None or obstacle is None or before[1:] != obstacle[1:]:
            self._since = now
        self._obstacle = obstacle
        return obstacle.text if obstacle and now - self._since >= REPORT_SECONDS else None

    @property
    def overdue(self) -> str | None:
        """Sentence about an obstacle that has lasted longer than its limit. None otherwise."""
        found, limit = self._obstacle, self._limit
        if found is None or limit is None or not (found.is_network or found.is_refused):
            return None
        waited = self._now() - self._since
        longest = limit if found.is_network else limit * REFUSED_LIMITS
        return f"{found.text}, for {waited:.0f} s" if waited >= longest else None
