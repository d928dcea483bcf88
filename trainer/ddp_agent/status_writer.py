"""Maintain the agent status of the current attempt: phase, heartbeats and timeline.

Process: agent (loop).
"""

import sys
from collections.abc import Sequence

from ddp_agent.clock import Clock
from ddp_agent.config import AgentConfig
from ddp_agent.members import Members
from ddp_agent.orders import Interruption
from ddp_agent.processes.launch import Launch
from ddp_agent.processes.rank_processes import read_processes
from ddp_agent.processes.rank_sockets import all_connected
from ddp_agent.status.heartbeats import (
    all_joined,
    all_spawned,
    extend_timeline,
    none_starts,
    read_heartbeats,
)
from ddp_agent.status.status_cell import AgentStatusCell
from ddp_wire.messages import (
    AgentPhase,
    AgentStatus,
    ExitProblem,
    Failure,
    Heartbeat,
    HungRank,
    Timeline,
)
from ddp_wire.records import KeptSteps

LOOK_SECONDS = 0.5
"""Seconds between two checks of the connections of a command's ranks during its start."""


class StatusWriter:
    """Writer of the agent status. Only the agent's loop calls it."""

    def __init__(self, config: AgentConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._noticed_at: float | None = None
        self._ordered_at: float | None = None
        self._cleared_at: float | None = None
        self._looked_at = 0.0
        self._is_alone = False
        self.cell = AgentStatusCell(
            AgentStatus(
                job_uid=config.job_uid,
                unread_notices=0 if config.node_index == 0 else None,
                node_index=config.node_index,
                attempt=0,
                phase=AgentPhase.WAITING,
                since=clock.wall(),
            )
        )

    @property
    def status(self) -> AgentStatus:
        """Current agent status."""
        return self.cell.current()

    def start_attempt(self, members: Members, command: list[str]) -> None:
        """Publish a new attempt, which either waits for its start or does not include this node."""
        now = self._clock.wall()
        timeline = Timeline(
            noticed=self._noticed_at, ordered=self._ordered_at or now, cleared=self._cleared_at
        )
        self._is_alone = len(members.nodes) * self._config.procs_per_node == 1
        self.cell.start_attempt(members, now, command, timeline)
        self._ordered_at = None

    def launched(self) -> None:
        """Publish that torchrun is being started."""
        if self.status.timeline is not None:
            update = {"launched": self._clock.wall()}
            self.cell.set_timeline(self.status.timeline.model_copy(update=update))
        self.enter(AgentPhase.STARTING)

    def interrupted(self, interruption: Interruption) -> None:
        """Record when the agent received the order for the next attempt."""
        if interruption in {Interruption.NEXT_ATTEMPT, Interruption.RESIZE}:
            self._ordered_at = self._ordered_at or self._clock.wall()

    def ended(self, interruption: Interruption | None) -> None:
        """Record whether the attempt's process ended by itself, for the next attempt's timeline."""
        self._noticed_at = self._clock.wall() if interruption is None else None

    def cleared(self) -> None:
        """Record that no process of the attempt is left, for the next attempt's timeline."""
        self._cleared_at = self._clock.wall()

    def update_from_ranks(self, launch: Launch) -> None:
        """Store the newest heartbeats. Publish the training phase once all local ranks train."""
        heartbeats = read_heartbeats(launch.heartbeats_dir, launch.attempt)
        ranks = self._config.procs_per_node
        spawned = self._update_timeline(launch, heartbeats)
        training = all_joined(heartbeats, ranks)
        if not training and spawned and self._config.task is None:
            training = self._command_trains(launch, heartbeats)
            known = self.status.timeline
            if training and known is not None and known.joined is None:
                joined = {"joined": self._clock.wall()}
                self.cell.set_timeline(known.model_copy(update=joined))
        if training and self.status.phase is AgentPhase.STARTING:
            self.enter(AgentPhase.TRAINING)
        first: Heartbeat | None = next((one for one in heartbeats if one.rank == 0), None)
        self.cell.update(
            ranks=heartbeats,
            progress=first.progress if first else self.status.progress,
        )
        self.cell.set_checkpoint(first.checkpoint if first else self.status.checkpoint)

    def set_wait(self, text: str | None) -> None:
        """Publish the obstacle before the start that this node waits for, or None."""
        self.cell.set_waits_for(text)

    def set_kept_steps(self, kept: KeptSteps) -> None:
        """Store the updates after which this node has kept the state of the run in memory."""
        self.cell.update(kept_step=kept.whole, kept_part_step=kept.parts)

    def set_warm(self, warm: bool) -> None:
        """Publish whether an attempt could start at once."""
        self.cell.set_warm(warm)

    def set_hang(self, hung: list[HungRank] | None) -> None:
        """Publish the findings about hung ranks, or None if the ranks make progress."""
        self.cell.set_hang(hung)

    def succeeded(self, problems: list[ExitProblem] | None) -> None:
        """Publish that the attempt has succeeded, and the problems of ranks during their exit."""
        self.cell.update(exit_problems=problems)
        self.enter(AgentPhase.SUCCEEDED)

    def enter(self, phase: AgentPhase, failure: Failure | None = None) -> None:
        """Publish a phase of the attempt."""
        self.cell.enter(phase, self._clock.wall(), failure)

    def _command_trains(self, launch: Launch, heartbeats: Sequence[Heartbeat]) -> bool:
        """Return whether the local ranks of a command have joined the process group.

        A command may write heartbeats on all ranks, on some or on none. A single rank needs no
        process group.
        """
        if self.status.phase is not AgentPhase.STARTING:
            return False
        if not none_starts(heartbeats):
            return False
        processes = read_processes(launch.heartbeats_dir)
        if heartbeats or self._is_alone or sys.platform != "linux":
            return True
        if processes is None or not processes.master_port:
            return processes is not None  # This torch does not tell the port.
        now = self._clock.monotonic()
        if now < self._looked_at + LOOK_SECONDS:
            return False
        self._looked_at = now
        pids = processes.running.values()
        return bool(pids) and all_connected(pids, processes.master_port)

    def _update_timeline(self, launch: Launch, heartbeats: Sequence[Heartbeat]) -> bool:
        """Update the timeline. Return whether torchrun has started all local ranks."""
        known, ranks = self.status.timeline, self._config.procs_per_node
        if known is None:
            return False
        if known.spawned is None and all_spawned(launch.log_dir, ranks):
            known = known.model_copy(update={"spawned": self._clock.wall()})
        self.cell.set_timeline(extend_timeline(known, heartbeats, ranks))
        return known.spawned is not None
