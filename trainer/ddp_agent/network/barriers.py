"""Choose this node's side of the start barrier from the members of each attempt.

The first member waits for all other members (`barrier`), which connect to it (`barrier_client`). If
another node becomes the first member, the old first member closes its port and the new one opens
its own.

Process: agent (loop).
"""

import logging
from collections.abc import Callable

from ddp_agent.config import AgentConfig
from ddp_agent.members import Members
from ddp_agent.network.barrier import SPARE_CONNECTIONS, BarrierServer
from ddp_agent.network.barrier_client import BarrierClient, StartBarrier
from ddp_wire.processes import describe_open_files, open_file_limit

_log = logging.getLogger("ddp_agent")

_OTHER_FILES = 256
"""Number of open files of an agent besides its barrier: HTTP server, logs and libraries."""


class Barriers:
    """Both sides of one node's start barrier. Only one side is in use at a time."""

    def __init__(self, config: AgentConfig, on_unread: Callable[[], None] = lambda: None) -> None:
        """Open the port on node 0 of a job with several nodes, so that a used port is found early.

        Args:
            config: Configuration of the agent.
            on_unread: Function that is called for each notice of another node's unread status.

        Raises:
            OSError: The port is not free.
        """
        self._config, self._on_unread = config, on_unread
        self._server: BarrierServer | None = None
        self._client = BarrierClient(
            config.rendezvous_host,
            config.barrier_port,
            config.job_uid,
            config.node_index,
            secret=config.job_secret,
        )
        if config.node_index == 0 and config.nodes > 1:
            self._server = self._open()

    def side_for(self, members: Members) -> StartBarrier | None:
        """Return this node's side in an attempt, or None if it is the only member.

        Raises:
            OSError: The port is not free.
        """
        if not members.is_first:
            self.leave()
            self._client.expect(members)
            return self._client
        self._client.close()
        if len(members.nodes) == 1 and not members.are_named:
            return None
        if self._server is None:
            self._server = self._open()
        self._server.expect(members)
        return self._server

    def leave(self) -> None:
        """Close the port and all connections, because this node is not the first member."""
        self._client.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _open(self) -> BarrierServer:
        """Listen on the port of the barrier.

        Raises:
            OSError: The port is not free.
        """
        config = self._config
        needed = config.nodes + SPARE_CONNECTIONS + _OTHER_FILES
        if needed > open_file_limit():
            text = "the agent of node %d needs up to %d open files for a job of %d nodes, but %s"
            limit = describe_open_files()
            _log.warning(text, config.node_index, needed, config.nodes, limit)
        return BarrierServer(
            config.bind,
            config.barrier_port,
            config.job_uid,
            config.nodes,
            self._on_unread,
            secret=config.job_secret,
        )
