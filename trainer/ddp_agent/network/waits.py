"""Track the obstacle that keeps a node from the start, and its duration.

Process: agent (loop).
"""

import socket
from collections.abc import Sequence
from typing import NamedTuple

from ddp_agent.clock import Clock

REPORT_SECONDS = 15.0
"""Seconds after which the agent reports the obstacle that it waits for."""
_NAMED = 8
"""Maximum number of nodes that a message names."""
REFUSED_LIMITS = 4
"""Factor for the network's limit while node 0 refuses connections. Its pod may still pull the image
or run init containers, or a NetworkPolicy may reject connections."""
_UNRESOLVED = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Obstacle(NamedTuple):
    """Reason why a node waits for a peer."""

    text: str
    is_network: bool = False
    """Whether the network is the reason, and not a pod that is still starting."""
    is_refused: bool = False
    """Whether a peer refuses the connection, because of the network or because its pod does not run
    yet."""


def unreachable(address: tuple[str, int], error: OSError) -> Obstacle:
    """Return the obstacle that a failed connection to node 0 shows.

    If the name has no address, the pod is still starting.
    """
    host, port = address
    starting = isinstance(error, socket.gaierror) and error.errno in _UNRESOLVED
    refused = isinstance(error, ConnectionRefusedError)
    reason = error.strerror or str(error) or type(error).__name__
    text = f"cannot reach {host} on port {port}: {reason}"
    return Obstacle(text, is_network=not (starting or refused), is_refused=refused)


def late_nodes(port: int, nodes: Sequence[int]) -> Obstacle:
    """Return the obstacle of node 0 while other nodes have not connected yet."""
    named = ", ".join(map(str, nodes[:_NAMED]))
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return Obstacle(f"waits on port {port} for the agents of nodes {named}{more}")


class WaitWatch:
    """Timer for the time that an obstacle has lasted without a break."""

    def __init__(self, clock: Clock, limit_seconds: float | None) -> None:
        """Create a timer without an obstacle.

        Args:
            clock: Clock of the agent's loop.
            limit_seconds: Maximum wait because of the network, or None for no limit. Refused
                connections may last `REFUSED_LIMITS` times as long.
        """
        self._now, self._limit = clock.monotonic, limit_seconds
        self._obstacle: Obstacle | None = None
        self._since = 0.0

    def look(self, obstacle: Obstacle | None) -> str | None:
        """Record the current obstacle. Return its text once it has lasted for some seconds."""
        before, now = self._obstacle, self._now()
        if before is None or obstacle is None or before[1:] != obstacle[1:]:
            self._since = now
        self._obstacle = obstacle
        return obstacle.text if obstacle and now - self._since >= REPORT_SECONDS else None

    @property
    def overdue(self) -> str | None:
        """Message about an obstacle that has lasted longer than its limit, or None."""
        found, limit = self._obstacle, self._limit
        if found is None or limit is None or not (found.is_network or found.is_refused):
            return None
        waited = self._now() - self._since
        longest = limit if found.is_network else limit * REFUSED_LIMITS
        return f"{found.text}, for {waited:.0f} s" if waited >= longest else None
