"""Manage the checkpoints of one run: open the directory, resume, save when due, delete old ones.

The manager calls the modules with the single steps: the claim on the directory (`fence`), the
choice of a checkpoint (`load`), the atomic write (`writer`) and the deletion of old checkpoints
(`retention`). It remembers which complete checkpoints this attempt has found or written, and
deletes only these, because another attempt may have written the rest.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint import load, retention, writer
from ddp_trainer.checkpoint.fence import Fence, holder
from ddp_trainer.checkpoint.format import CONFIG, CheckpointName, names_in
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.config import CheckpointConfig
from ddp_wire.files import open_folder
from ddp_wire.messages import CheckpointInfo

DEFAULT_SECONDS = 300
"""Seconds between two checkpoints if the config states no interval."""


class CheckpointManager:
    """Manager of a run's checkpoints in one attempt. Only global rank 0 accesses the volume."""

    def __init__(self, config: CheckpointConfig, sleep: Sleep = time.sleep) -> None:
        self._config = config
        self._sleep = sleep
        self._directory = Path(config.directory) if config.directory else None
        self._attempt = 0
        self._fence: Fence | None = None
        self._known: list[CheckpointName] = []
        self._last_time = time.monotonic()

    @property
    def enabled(self) -> bool:
        """Whether a checkpoint directory is configured."""
        return self._directory is not None

    @property
    def newest(self) -> CheckpointInfo | None:
        """The newest complete checkpoint that this process found or saved."""
        if self._directory is None or not self._known:
            return None
        path = self._directory / str(self._known[-1])
        return CheckpointInfo(step=self._known[-1].step, path=str(path), at=path.stat().st_mtime)

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
        every = self._config.every_steps
        stated = every is not None or self._config.every_seconds is not None
        by_step = every is not None and step % every == 0
        return by_clock or by_step or (epoch_ended and not stated)

    def interval_passed(self) -> bool:
        """Return whether the interval in seconds has passed, by this process's clock."""
        seconds = self._config.every_seconds
        if seconds is None and self._config.every_steps is None:
            seconds = DEFAULT_SECONDS
        age = time.monotonic() - self._last_time
        return self.enabled and seconds is not None and age >= seconds

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
            self._known = retention.keep_newest(
                self._directory, self._known, self._config.keep, self._fence.check
            )
        return self.newest


def _next_attempt(directory: Path) -> int:
    """Return a number higher than those of all attempts in the directory."""
    held = holder(directory)
    used = [name.attempt for name in names_in(directory)]
    return max([*used, held["attempt"] if held else -1], default=-1) + 1
