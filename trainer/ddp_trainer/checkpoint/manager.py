"""The checkpoints of one run: opened, resumed from, saved on time, thinned out."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddp_agent.contract import CheckpointInfo
from ddp_trainer.checkpoint import load, retention, snapshot, writer
from ddp_trainer.checkpoint.format import CONFIG, Name, names_in
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import InputError

DEFAULT_SECONDS = 300
"""Longest time between two checkpoints when the configuration states no interval."""


class CheckpointManager:
    """Holds what must be known between checkpoints. Only global rank 0 touches the volume."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._directory = Path(config.directory) if config.directory else None
        self._attempt = 0
        self._newest: Name | None = None
        self._last_time = time.monotonic()

    @property
    def enabled(self) -> bool:
        """Whether there is anywhere to save to."""
        return self._directory is not None

    @property
    def newest(self) -> CheckpointInfo | None:
        """The newest whole checkpoint that this process knows of."""
        if self._directory is None or self._newest is None:
            return None
        path = self._directory / str(self._newest)
        return CheckpointInfo(step=self._newest.step, path=str(path), at=path.stat().st_mtime)

    def open(self, attempt: int | None, config: dict[str, Any]) -> dict[str, Any]:
        """Prepares the run's directory. Rank 0 only.

        Args:
            attempt: This attempt's number; when not stated, the next one that is free.
            config: The resolved configuration, to be written there.

        Returns:
            JSON: `attempt`, its number; `resume`, the fields of the `CheckpointInfo` to resume from
            or null; `skipped`, one sentence per newer checkpoint that is not whole.

        Raises:
            InputError: If the directory cannot be used.
        """
        if self._directory is None:
            return {"attempt": attempt or 0, "resume": None, "skipped": []}
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            names = names_in(self._directory)
            if attempt is None:
                attempt = max((name.attempt + 1 for name in names), default=0)
            retention.sweep_pending(self._directory, attempt)
            writer.replace_json(self._directory / CONFIG, config)
        except OSError as error:
            raise InputError(f"checkpoint: cannot use {self._directory}: {error}") from error
        self._attempt = attempt
        choice = load.choose(self._directory)
        self._newest = choice.name
        resume = self.newest.model_dump() if self.newest else None
        return {"attempt": attempt, "resume": resume, "skipped": choice.skipped}

    def receive(self, device: torch.device) -> Snapshot:
        """The chosen checkpoint, on every rank. Every rank must call it."""
        newest = self.newest
        return load.receive(Path(newest.path) if newest else None, device)

    def due(self, step: int, *, epoch_ended: bool, by_clock: bool) -> bool:
        """Whether to save after this update; equal on all ranks.

        Args:
            step: Updates done.
            epoch_ended: Whether it was the last one of an epoch.
            by_clock: Whether the ranks agreed that time is up.
        """
        if not self.enabled:
            return False
        every = self._config.every_steps
        stated = every is not None or self._config.every_seconds is not None
        by_step = every is not None and step % every == 0
        return by_clock or by_step or (epoch_ended and not stated)

    def time_is_up(self) -> bool:
        """Whether the newest checkpoint is older than it should be, by this process's clock."""
        seconds = self._config.every_seconds
        if seconds is None and self._config.every_steps is None:
            seconds = DEFAULT_SECONDS
        age = time.monotonic() - self._last_time
        return self.enabled and seconds is not None and age >= seconds

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> CheckpointInfo | None:
        """Commits a checkpoint, then deletes the oldest. Rank 0 only.

        Args:
            model: The bare model.
            optimizer: Over its parameters.
            state: JSON; its `step` names the checkpoint.

        Returns:
            The checkpoint, or nothing if this step is saved already.

        Raises:
            OSError: If the volume refuses.
        """
        step = state["step"]
        if self._directory is None or (self._newest and self._newest.step == step):
            return None
        self._last_time = time.monotonic()
        taken = snapshot.take(model, optimizer)
        taken.state = state
        name = Name(step, self._attempt)
        writer.commit(self._directory, name, taken)
        self._newest = name
        retention.keep_newest(self._directory, self._config.keep)
        return self.newest
