"""Heartbeats: one small file per local rank, for the agent on the same node.

A heartbeat contains the phase, the step, the newest checkpoint and the newest times. Only the
training thread writes it, at each change of the phase and otherwise about twice a second. So the
age of the file shows the agent that a rank is stuck. The activity record (`ddp_wire.activity`) is
shared memory that costs no system call, and shows the activity in which the rank is stuck.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.ranks.environment import Ranks
from ddp_wire.activity import SUFFIX, Activity, ActivityWriter
from ddp_wire.messages import (
    CheckpointInfo,
    LocalHeartbeat,
    Progress,
    RankPhase,
    RankTimes,
    TrainingTimes,
)

_KNOWN_UPDATES = 4
"""Number of updates of an attempt after which three durations are known. The first update has no
duration, because no update precedes it."""
MIN_SECONDS = 0.5
"""Minimum seconds between two heartbeats of the same phase."""


class HeartbeatWriter:
    """Writer of this rank's heartbeat, at each phase change and about twice a second.

    Only the training thread writes heartbeats, so the heartbeats of a stuck rank stop. It also
    updates the activity record, which costs no system call. After a rank is killed, this record
    still has its exact step.
    """

    def __init__(
        self,
        directory: Path | None,
        ranks: Ranks,
        attempt: int,
        *,
        min_seconds: float = MIN_SECONDS,
    ) -> None:
        """Prepare the first heartbeat, without writing it.

        Args:
            directory: Directory on the node, created if missing. None disables heartbeats.
            ranks: This process's rank.
            attempt: Number of the attempt.
            min_seconds: Shortest time between two heartbeats of the same phase.
        """
        self._directory = directory
        self._min_seconds = min_seconds
        self._written = 0.0
        self._step = self._updates = 0
        self._read_times: Callable[[], RankTimes] | None = None
        self._activity = _create_record(directory, ranks.local_rank)
        self._read_training_times: Callable[[], TrainingTimes | None] | None = None
        self._heartbeat = LocalHeartbeat(
            attempt=attempt,
            rank=ranks.rank,
            local_rank=ranks.local_rank,
            phase=RankPhase.STARTING,
            at=0.0,
            pid=os.getpid(),
        )

    def measure(
        self,
        read_times: Callable[[], RankTimes],
        read_training_times: Callable[[], TrainingTimes | None] | None,
    ) -> None:
        """Set the functions that add the rank's times to each heartbeat.

        Args:
            read_times: Function that returns the times for the agent's metrics.
            read_training_times: Function that returns the times for the operator, on global rank 0.
        """
        self._read_times, self._read_training_times = read_times, read_training_times

    def phase(self, phase: RankPhase) -> None:
        """Set the phase, and write the heartbeat at once."""
        self._heartbeat.phase = phase
        if phase is RankPhase.TRAINING and self._heartbeat.joined_at is None:
            self._heartbeat.joined_at = time.time()
        self._write()

    def done(self, result: int) -> None:
        """Report that this rank has finished its work, and the exit code that it will have."""
        self._heartbeat.result = result
        self.phase(RankPhase.DONE)

    def enter(self, activity: Activity) -> None:
        """Record the start of an activity. Activities until the first update count as the start."""
        if self._activity is None:
            return
        if self._heartbeat.first_step_at is None:
            self._activity.touch()
        else:
            self._activity.enter(activity)

    def resumed(self, step: int) -> None:
        """Set the step that this attempt resumed from."""
        self._heartbeat.resumed_from = self._step = step

    def step(self, step: int) -> None:
        """Set the number of completed updates.

        Two updates are written at once: the first update of the attempt, because it ends a
        recovery, and the update after which the agent knows how long an update takes.
        """
        self._updates += 1
        self._step = step
        if self._activity is not None:
            self._activity.step(step)
        if self._heartbeat.first_step_at is None:
            self._heartbeat.first_step_at = time.time()
            self._write()
        elif self._updates == _KNOWN_UPDATES:
            self._write()
        else:
            self.refresh()

    def progress(self, progress: Progress) -> None:
        """Set the run's progress. Only global rank 0 calls this method."""
        self._heartbeat.progress = progress
        self.refresh()

    def checkpoint(self, checkpoint: CheckpointInfo) -> None:
        """Set the newest committed checkpoint on global rank 0, and write the heartbeat at once.

        An attempt that fails right after its first checkpoint must not count as stalled.
        """
        self._heartbeat.checkpoint = checkpoint
        self._write()

    def refresh(self) -> None:
        """Record progress, and write the heartbeat unless the last one was written just before."""
        if self._activity is not None:
            self._activity.touch()
        if time.monotonic() - self._written >= self._min_seconds:
            self._write()

    def _write(self) -> None:
        if self._directory is None:
            return
        self._written = time.monotonic()
        self._heartbeat.at = time.time()
        self._heartbeat.step = self._step
        if self._read_times is not None:
            self._heartbeat.times = self._read_times()
        if self._read_training_times is not None:
            times = self._read_training_times()
            self._heartbeat.training_times = times
            if times is not None:
                times.step = self._step
        write_heartbeat(self._directory, self._heartbeat)


def write_heartbeat(directory: Path, heartbeat: LocalHeartbeat) -> None:
    """Replace the newest heartbeat of a rank. Ignore a full disk.

    Args:
        directory: Directory on the node, created if missing.
        heartbeat: Heartbeat to write.
    """
    name = f"{heartbeat.local_rank}.json"
    pending = directory / f".{name}.tmp"
    # The next heartbeat tries again.
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        pending.write_text(heartbeat.to_json(), encoding="utf-8")
        pending.replace(directory / name)


def _create_record(directory: Path | None, local_rank: int) -> ActivityWriter | None:
    if directory is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return ActivityWriter(directory / f"{local_rank}{SUFFIX}")
    except OSError:
        return None  # The run is more important than its observation.
