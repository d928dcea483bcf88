"""Manage the checkpoints of one run: open the directory, resume, save when due, delete old ones.

The manager calls the modules with the single steps: the claim on the directory (`fence`), the
choice of a checkpoint (`load`), the atomic write (`writer`) and the deletion of old checkpoints
(`retention`). It remembers which complete checkpoints this attempt has found or written, and
deletes only these, because another attempt may have written the rest.
"""

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint import load, retention, writer
from ddp_trainer.checkpoint.fence import Fence, holder
from ddp_trainer.checkpoint.format import (
    CONFIG,
    STATE,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
    read_json,
)
from ddp_trainer.checkpoint.interval import Interval, read_experience
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.saved_state import SavedState
from ddp_wire.files import open_folder
from ddp_wire.messages import CheckpointInfo


class CheckpointManager:
    """Manager of a run's checkpoints in one attempt. Only global rank 0 accesses the volume."""

    def __init__(self, config: CheckpointConfig, sleep: Sleep = time.sleep) -> None:
        self._config = config
        self._sleep = sleep
        self._directory = Path(config.directory) if config.directory else None
        self._attempt = 0
        self._fence: Fence | None = None
        self._known: list[CheckpointName] = []
        self._ratings: dict[CheckpointName, float] = {}
        self._last_time = time.monotonic()
        self._interval = Interval() if config.chooses_interval else None

    @property
    def enabled(self) -> bool:
        """Whether a checkpoint directory is configured."""
        return self._directory is not None

    @property
    def newest(self) -> CheckpointInfo | None:
        """The newest complete checkpoint that this process found or saved."""
        if self._directory is None or not self._known:
            return None
        path, seconds = self._directory / str(self._known[-1]), self.interval_seconds
        at = path.stat().st_mtime
        return CheckpointInfo(
            step=self._known[-1].step, path=str(path), at=at, interval_seconds=seconds
        )

    @property
    def interval_seconds(self) -> float | None:
        """Seconds between two checkpoints. None if no clock decides."""
        if self._interval is not None:
            return self._interval.seconds
        seconds = self._config.every_seconds
        return seconds if isinstance(seconds, int) else None

    def open(self, attempt: int | None, config: dict[str, Any], job: str = "") -> dict[str, Any]:
        """Claim and prepare the run's directory. Only rank 0 calls this method.

        Args:
            attempt: This attempt's number. By default the next free number.
            config: The resolved config, which is written to the directory.
            job: Uid of the job.

        Returns:
            JSON: `attempt`, the number of this attempt. `resume`, the fields of the
            `CheckpointInfo` to resume from, or null. `skipped`, one sentence per newer checkpoint
            that is damaged, or one about all of them if the run starts over.

        Raises:
            InputError: If the directory or its checkpoints cannot be used.
            VolumeError: If the volume fails.
            FencedError: If a newer attempt of this job owns the directory.
        """
        if self._directory is None:
            return {"attempt": attempt or 0, "resume": None, "skipped": []}
        directory = self._directory
        if self._interval is not None:
            self._interval = Interval(read_experience(directory))
        try:
            self._attempt = retried(
                lambda: self._claim(directory, attempt, config, job), self._sleep
            )
        except OSError as error:
            raise volume_error(f"checkpoint: cannot use {directory}: {error}", error) from error
        choice = load.choose(directory, start_over=self._config.start_over, sleep=self._sleep)
        self._known = choice.known
        newest = load.reading(directory, lambda: self.newest, self._sleep)
        resume = newest.model_dump() if newest else None
        return {"attempt": self._attempt, "resume": resume, "skipped": choice.skipped}

    def _claim(self, directory: Path, attempt: int | None, config: dict[str, Any], job: str) -> int:
        """Claim and prepare the directory, and return the number of the attempt."""
        with open_folder(directory, directory):
            pass  # It exists now, and no link leads out of the claim.
        if attempt is None:
            attempt = _next_attempt(directory)
        self._fence = Fence(directory, job, attempt)
        self._fence.open()
        retention.sweep_pending(directory, attempt)
        writer.replace_json(directory / CONFIG, config)
        return attempt

    def receive(self, device: torch.device) -> Checkpoint:
        """Return the newest checkpoint on every rank. Every rank must call it.

        Raises:
            VolumeError: On every rank, if rank 0 cannot read it.
        """
        newest = self._directory / str(self._known[-1]) if self._directory and self._known else None
        return load.receive(newest, device, self._sleep)

    def due(self, step: int, *, epoch_ended: bool, by_clock: bool) -> bool:
        """Return whether to save after this update. The result is the same on all ranks.

        Args:
            step: Number of completed updates.
            epoch_ended: Whether this update was the last one of an epoch.
            by_clock: Whether the ranks agreed that the interval in seconds has passed.
        """
        if not self.enabled:
            return False
        every, seconds = self._config.every_steps, self._config.every_seconds
        by_epoch = every is None and not isinstance(seconds, int)
        by_step = every is not None and step % every == 0
        return by_clock or by_step or (epoch_ended and by_epoch)

    def interval_passed(self) -> bool:
        """Return whether the interval in seconds has passed, by this process's clock."""
        seconds = self.interval_seconds
        age = time.monotonic() - self._last_time
        return self.enabled and seconds is not None and age >= seconds

    def measured(self, seconds: float) -> str | None:
        """Add the seconds for which a save stopped training.

        Returns:
            A sentence about the interval, if the manager has chosen a clearly different one.
        """
        return None if self._interval is None else self._interval.measured(seconds)

    def is_best(self, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation is better than those of all known checkpoints."""
        value = self._value(metrics)
        others = [self._rating(name) for name in self._known]
        return not math.isnan(value) and all(math.isnan(o) or value > o for o in others)

    def _value(self, metrics: Mapping[str, float]) -> float:
        """Return how good an evaluation is: higher is better, and NaN unknown."""
        best = self._config.keep_best
        value = math.nan if best is None else metrics.get(best, math.nan)
        return value if self._config.keep_best_mode == "max" else -value

    def _rating(self, name: CheckpointName) -> float:
        """Return how good the evaluation of a checkpoint is, read from its state once."""
        if self._directory is not None and name not in self._ratings:
            try:
                state = SavedState.model_validate(read_json(self._directory / str(name) / STATE))
                self._ratings[name] = self._value(state.metrics or {})
            except (BrokenCheckpointError, ValueError, OSError):
                return math.nan
        return self._ratings.get(name, math.nan)

    def save(self, checkpoint: Checkpoint) -> CheckpointInfo | None:
        """Commit a checkpoint, then delete the oldest ones. Only rank 0 calls this method.

        Args:
            checkpoint: Whole checkpoint in host memory. Its name contains the `step` of its state.

        Returns:
            The checkpoint, or None if this step is saved already.

        Raises:
            OSError: If the volume fails.
            FencedError: If a newer attempt owns the directory. No checkpoint was replaced or
                deleted.
        """
        step = checkpoint.state.step
        if self._directory is None or self._fence is None:
            return None
        if self._known and self._known[-1].step == step:
            return None
        self._last_time = time.monotonic()
        name = CheckpointName(step, self._attempt)
        try:
            writer.commit(self._directory, name, checkpoint, self._fence.check)
        except OSError:
            # A newer attempt deletes pending directories. Then the fence is the real reason.
            with contextlib.suppress(OSError):
                self._fence.check()
            raise
        self._known = [*self._known, name]
        with contextlib.suppress(OSError):  # The next save tries again to delete.
            self._known = retention.delete_others(
                self._directory, self._known, self._config, self._rating, self._fence.check
            )
        return self.newest


def _next_attempt(directory: Path) -> int:
    """Return a number higher than those of all attempts in the directory."""
    held = holder(directory)
    used = [name.attempt for name in names_in(directory)]
    return max([*used, held["attempt"] if held else -1], default=-1) + 1
