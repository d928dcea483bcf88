"""Thread-safe cell with the agent status: the loop writes it, and other threads read it.

Process: agent (all threads).
"""

import threading
from typing import Any

from ddp_agent.members import Members
from ddp_wire.messages import AgentPhase, AgentStatus, CheckpointInfo, Failure, HungRank, Timeline


class AgentStatusCell:
    """Current agent status. One thread writes it, and any thread may read or await it."""

    def __init__(self, first: AgentStatus) -> None:
        self._status = first
        self._changed = threading.Condition()
        self._read_revision = -1

    def current(self) -> AgentStatus:
        """Return the current status."""
        return self._status

    @property
    def is_read(self) -> bool:
        """Whether a client has read the newest published status."""
        return self._read_revision == self._status.revision

    @property
    def was_ever_read(self) -> bool:
        """Whether a client has read any status."""
        return self._read_revision >= 0

    def record_read(self, status: AgentStatus) -> None:
        """Record that a client has received this status. Safe to call from any thread."""
        self._read_revision = max(self._read_revision, status.revision)

    def wait_for_change(self, revision: int, seconds: float) -> AgentStatus:
        """Return the status once its revision differs, or after the given seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.revision != revision, seconds)
            return self._status

    def update(self, **fields: Any) -> None:
        """Set fields by their Python names, without waking threads that wait for a change."""
        self._status = self._status.model_copy(update=fields)

    def start_attempt(
        self, members: Members, now: float, command: list[str], timeline: Timeline
    ) -> None:
        """Publish the status of a new attempt, without anything of the previous one.

        Only the first member's agent counts the notices of other agents.
        """
        self._publish(
            AgentStatus(
                job_uid=self._status.job_uid,
                unread_notices=(self._status.unread_notices or 0) if members.is_first else None,
                node_index=self._status.node_index,
                attempt=members.attempt,
                members=members.text,
                warm=self._status.warm,
                phase=AgentPhase.WAITING,
                since=now,
                command=command,
                timeline=timeline,
            )
        )

    def enter(self, phase: AgentPhase, now: float, failure: Failure | None = None) -> None:
        """Publish a new phase of the attempt. Do nothing if the phase is unchanged."""
        if phase is not self._status.phase:
            update = {
                "phase": phase,
                "since": now,
                "failure": failure,
                "hang": None,
                "waits_for": None,
            }
            self._publish(self._status.model_copy(update=update))

    def count_unread(self) -> None:
        """Add one to the published number of notices of unread status from other nodes."""
        notices = (self._status.unread_notices or 0) + 1
        self._publish(self._status.model_copy(update={"unread_notices": notices}))

    def set_timeline(self, timeline: Timeline) -> None:
        """Store the timeline. Publish it only when the local ranks complete their first update."""
        known = self._status.timeline
        changed = self._status.model_copy(update={"timeline": timeline})
        if timeline.stepped is not None and (known is None or known.stepped is None):
            self._publish(changed)
        else:
            self._status = changed

    def set_checkpoint(self, checkpoint: CheckpointInfo | None) -> None:
        """Store the newest checkpoint. Publish the first one that this attempt has saved.

        The first checkpoint decides whether the attempt counts as stalled, and another node may
        fail right after it.
        """
        known = self._status.checkpoint
        changed = self._status.model_copy(update={"checkpoint": checkpoint})
        if self._is_own(checkpoint) and not self._is_own(known):
            self._publish(changed)
        else:
            self._status = changed

    def _is_own(self, checkpoint: CheckpointInfo | None) -> bool:
        """Return whether this attempt saved a checkpoint. It may have resumed from an older one."""
        timeline = self._status.timeline
        if checkpoint is None or timeline is None or timeline.launched is None:
            return False
        return checkpoint.at >= timeline.launched

    def set_waits_for(self, text: str | None) -> None:
        """Publish the obstacle that this node waits for. Do nothing if it is unchanged."""
        if text != self._status.waits_for:
            self._publish(self._status.model_copy(update={"waits_for": text}))

    def set_warm(self, warm: bool) -> None:
        """Publish whether an attempt could start at once. Do nothing if that is unchanged."""
        if warm != self._status.warm:
            self._publish(self._status.model_copy(update={"warm": warm}))

    def set_hang(self, hung: list[HungRank] | None) -> None:
        """Publish whether ranks hang. Do nothing if that is unchanged."""
        if hung != self._status.hang:
            self._publish(self._status.model_copy(update={"hang": hung}))

    def _publish(self, status: AgentStatus) -> None:
        with self._changed:
            revision = self._status.revision + 1
            self._status = status.model_copy(update={"revision": revision})
            self._changed.notify_all()
