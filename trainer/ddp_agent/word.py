"""What the agent says of itself: written by its loop, read and waited for by its server."""

import threading
from typing import Any

from ddp_wire.contract import AgentPhase, AgentStatus, Failure, Timeline


class Word:
    """The agent's status. One thread changes it; any thread may read it, or wait for news of it."""

    def __init__(self, first: AgentStatus) -> None:
        self._status = first
        self._changed = threading.Condition()

    def now(self) -> AgentStatus:
        """The newest status."""
        return self._status

    def news(self, revision: int, seconds: float) -> AgentStatus:
        """The status as soon as it is of another revision, or as it is after a time."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.revision != revision, seconds)
            return self._status

    def add(self, **fields: Any) -> None:
        """Change fields that nobody waits for, named as in Python."""
        self._status = self._status.model_copy(update=fields)

    def begin(self, attempt: int, now: float, command: list[str], timeline: Timeline) -> None:
        """Take up an attempt, with a clean slate."""
        self._publish(
            AgentStatus(
                job_uid=self._status.job_uid,
                node_index=self._status.node_index,
                attempt=attempt,
                phase=AgentPhase.WAITING,
                since=now,
                command=command,
                timeline=timeline,
            )
        )

    def enter(self, phase: AgentPhase, now: float, failure: Failure | None = None) -> None:
        """Enter a phase of the attempt, unless it is in it already."""
        if phase is not self._status.phase:
            update = {"phase": phase, "since": now, "failure": failure}
            self._publish(self._status.model_copy(update=update))

    def times(self, timeline: Timeline) -> None:
        """Bring the timeline up to date. The first update of all local ranks is news."""
        known = self._status.timeline
        changed = self._status.model_copy(update={"timeline": timeline})
        if timeline.stepped is not None and (known is None or known.stepped is None):
            self._publish(changed)
        else:
            self._status = changed

    def _publish(self, status: AgentStatus) -> None:
        with self._changed:
            revision = self._status.revision + 1
            self._status = status.model_copy(update={"revision": revision})
            self._changed.notify_all()
