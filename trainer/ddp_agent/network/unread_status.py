"""Tells node 0's agent when nobody reads an important status of this node.

The operator keeps one connection per job, to node 0's agent. It asks the other agents only while
they have news, so they must say when they have some. That this node starts or trains is no news:
node 0's agent trains only together with all the others, and it says so itself.
"""

import contextlib
import threading

from ddp_agent.config import AgentConfig
from ddp_agent.network.arrivals import Arrival, connected
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.contract import AgentPhase, AgentStatus

_GRACE_SECONDS = 0.05
"""Time in which an operator that waits for this agent reads a new status."""
_LONGEST_PAUSE_SECONDS = 30.0
_CHALLENGE_SECONDS = 5.0
"""Longest wait for node 0's agent, which looks at its connections about ten times per second."""
_COURSE = frozenset({AgentPhase.WAITING, AgentPhase.STARTING, AgentPhase.TRAINING})
"""Phases of an attempt in which nothing has failed."""


class Doorbell:
    """Thread of every agent but node 0's."""

    def __init__(self, config: AgentConfig, cell: AgentStatusCell) -> None:
        self._config, self._cell = config, cell
        self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)

    def start(self) -> None:
        """Watch the status until the process ends. Do nothing on node 0."""
        if self._config.node_index != 0:
            self._thread.start()

    def _run(self) -> None:
        known, pause = -1, _GRACE_SECONDS
        while True:
            status = self._cell.wait_for_change(known, pause)
            if status.revision != known:
                known, pause = status.revision, _GRACE_SECONDS
                continue
            # Without any reader so far, the operator still asks this agent again and again.
            unread = self._cell.was_ever_read and not self._cell.is_read
            if unread and _is_important(status):
                self._ring(status.attempt)
            pause = min(2.0 * pause, _LONGEST_PAUSE_SECONDS)

    def _ring(self, attempt: int) -> None:
        config = self._config
        message = Arrival(
            job_uid=config.job_uid,
            attempt=attempt,
            node_index=config.node_index,
            news=True,
        )
        with (
            contextlib.suppress(OSError),  # Node 0 is being replaced: the next ring reaches it.
            connected((config.rendezvous_host, config.barrier_port)) as link,
        ):
            link.settimeout(_CHALLENGE_SECONDS)
            message.send(link, config.job_secret)


def _is_important(status: AgentStatus) -> bool:
    """Return whether the operator must act on a status, of which node 0's agent knows nothing."""
    return status.phase not in _COURSE or status.hang is not None
