"""Signs of life: one small file per local rank, for the agent on the same node."""

import os
import time
from pathlib import Path

from ddp_trainer.ranks.environment import Ranks
from ddp_wire.contract import Beat, CheckpointInfo, Progress, RankPhase

MIN_SECONDS = 0.5
"""Shortest time between two beats of the same phase."""


class BeatWriter:
    """Writes this rank's newest beat, at most about twice a second and at every change of phase.

    Beats come from the thread that trains, so a rank that is stuck stops beating.
    """

    def __init__(
        self,
        directory: Path | None,
        ranks: Ranks,
        attempt: int,
        *,
        min_seconds: float = MIN_SECONDS,
    ) -> None:
        """Nothing is written without a directory.

        Args:
            directory: On the node; made if missing.
            ranks: This process's place.
            attempt: Number of the attempt.
            min_seconds: Shortest time between two beats of the same phase.
        """
        self._directory = directory
        self._min_seconds = min_seconds
        self._written = 0.0
        self._step = 0
        self._beat = Beat(
            attempt=attempt,
            rank=ranks.rank,
            local_rank=ranks.local_rank,
            phase=RankPhase.STARTING,
            at=0.0,
            pid=os.getpid(),
        )

    def phase(self, phase: RankPhase) -> None:
        """Enters a phase, and says so at once."""
        self._beat.phase = phase
        if phase is RankPhase.TRAINING and self._beat.joined_at is None:
            self._beat.joined_at = time.time()
        self._write()

    def resumed(self, step: int) -> None:
        """Notes the step that this attempt starts from."""
        self._beat.resumed_from = self._step = step

    def step(self, step: int) -> None:
        """Notes updates done; the first one of the attempt ends a recovery, and is told at once."""
        self._step = step
        if self._beat.first_step_at is None:
            self._beat.first_step_at = time.time()
            self._write()
        else:
            self.alive()

    def progress(self, progress: Progress) -> None:
        """Notes the run's progress; global rank 0 only."""
        self._beat.progress = progress
        self.alive()

    def checkpoint(self, checkpoint: CheckpointInfo) -> None:
        """Notes the newest committed checkpoint; global rank 0 only."""
        self._beat.checkpoint = checkpoint
        self.alive()

    def alive(self) -> None:
        """Writes the beat unless the last one is too young."""
        if time.monotonic() - self._written >= self._min_seconds:
            self._write()

    def _write(self) -> None:
        if self._directory is None:
            return
        self._written = time.monotonic()
        self._beat.at = time.time()
        self._beat.step = self._step
        name = f"{self._beat.local_rank}.json"
        pending = self._directory / f".{name}.tmp"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            pending.write_text(self._beat.to_json(), encoding="utf-8")
            pending.replace(self._directory / name)
        except OSError:
            # A full disk must not end a training that is otherwise well: the next beat tries again.
            return
