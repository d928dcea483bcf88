"""Notify the first member's agent while an important status of this node is unread.

The operator keeps one request per job open, to the first member's agent. It sends requests to other
agents only while the job changes. An agent that has failed or ended, or whose ranks hang, waits 50
ms for a reader. If nobody has read the status by then, it sends a notice to the port of the first
member's start barrier, and repeats it with growing pauses until its status is read. The first
member's agent counts the notices in its own status. This change answers the open request, and the
operator then requests the status of all agents. A node that is not a member also sends a notice
once it could train.

A member that starts or trains sends no notice: the first member trains only together with all other
members, so its own status reports the same.

Process: agent (a thread).
"""

import contextlib
import threading

from ddp_agent.config import AgentConfig
from ddp_agent.members import Members
from ddp_agent.network.arrivals import Arrival, connected
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.messages import AgentPhase, AgentStatus

_GRACE_SECONDS = 0.05
"""Seconds in which an operator with an open request to this agent reads a new status."""
_LONGEST_PAUSE_SECONDS = 30.0
_CHALLENGE_SECONDS = 5.0
"""Maximum seconds to wait for the challenge. Node 0's agent checks its connections ten times per
second."""
_NORMAL_PHASES = frozenset({AgentPhase.WAITING, AgentPhase.STARTING, AgentPhase.TRAINING})
"""Phases of an attempt without a failure."""


class UnreadStatusNotifier:
    """Thread that sends this agent's notices of unread status to the first member's agent."""

    def __init__(self, config: AgentConfig, cell: AgentStatusCell) -> None:
        self._config, self._cell = config, cell
        self._host = None if config.node_index == 0 else config.rendezvous_host
        """Address of the first member, or None on the first member itself."""
        self._takes_part = True
        self._thread = threading.Thread(target=self._run, name="unread-status", daemon=True)

    def start(self) -> None:
        """Watch the status until the process ends. Node 0 of a job of fixed size needs no watch."""
        if self._config.node_index != 0 or self._config.address_pattern:
            self._thread.start()

    def follow(self, members: Members) -> None:
        """Set the members of the newest attempt."""
        self._host = None if members.is_first else members.host
        self._takes_part = members.takes_part

    def _run(self) -> None:
        known, pause = -1, _GRACE_SECONDS
        while True:
            status = self._cell.wait_for_change(known, pause)
            if status.revision != known:
                known, pause = status.revision, _GRACE_SECONDS
                continue
            # The operator still asks an agent that it has never read, again and again.
            unread = self._cell.was_ever_read and not self._cell.is_read
            host, waits = self._host, not self._takes_part and bool(status.warm)
            if host is not None and unread and (_is_important(status) or waits):
                self._notify(host, status.attempt)
            pause = min(2.0 * pause, _LONGEST_PAUSE_SECONDS)

    def _notify(self, host: str, attempt: int) -> None:
        config = self._config
        message = Arrival(
            job_uid=config.job_uid,
            attempt=attempt,
            node_index=config.node_index,
            unread=True,
        )
        with (
            contextlib.suppress(OSError),  # Node 0 is being replaced: the next notice reaches it.
            connected((host, config.barrier_port)) as link,
        ):
            link.settimeout(_CHALLENGE_SECONDS)
            message.send(link, config.job_secret)


def _is_important(status: AgentStatus) -> bool:
    """Return whether the operator must read a status that the first member cannot report."""
    return status.phase not in _NORMAL_PHASES or status.hang is not None
