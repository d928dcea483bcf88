"""Manage the checkpoints of one run: open the directory, resume, save when due, delete old ones.

The manager calls the modules with the single steps: the claim on the directory (`fence`), the
choice of a checkpoint (`load`), the atomic write (`writer`) and the deletion of old checkpoints
(`retention`). It remembers which complete checkpoints this attempt has found or written, and
deletes only these, because another attempt may have written the rest.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint import assembly, load, mirrored, retention, writer
from ddp_trainer.checkpoint.background_process import Lead
from ddp_trainer.checkpoint.division import Pieces
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
from ddp_trainer.checkpoint.remote import process
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.store.directory import replace_json
from ddp_trainer.checkpoint.tensor_file import piece_parts
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.ranks.collectives import by_rank
from ddp_trainer.saved_state import SavedState
from ddp_wire.files import open_folder
from ddp_wire.messages import CheckpointInfo


class CheckpointManager:
    """Manager of a run's checkpoints in one attempt.

    Global rank 0 opens the directory, commits and deletes. Other ranks only write their parts.
    """

    def __init__(self, config: CheckpointConfig, sleep: Sleep = time.sleep) -> None:
        self._config = config
        self._sleep = sleep
        self._directory = Path(config.directory) if config.directory else None
        self._attempt = 0
        self._fence: Fence | None = None
        self._known: list[CheckpointName] = []
        self._ratings: dict[CheckpointName, float] = {}
        self._owner: dict[str, Any] = {}
        self._times: dict[CheckpointName, float] = {}
        self.mirror: process.MirrorProcess | None = None
        """The process that copies checkpoints to the object store, on rank 0."""
        self._last_time = time.monotonic()
        self.shared = False
        """Whether every rank can write to the directory."""
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
        at = self._times.get(self._known[-1]) or path.stat().st_mtime
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
            JSON: `attempt`, the number of this attempt. `claim`, its claim on the directory.
            `resume`, the fields of the `CheckpointInfo` to resume from, or null. `skipped`, one
            sentence per newer checkpoint that is damaged, or one about all of them if the run
            starts over.

        Raises:
            InputError: If the directory or its checkpoints cannot be used.
            VolumeError: If the volume fails.
            FencedError: If a newer attempt of this job owns the directory.
        """
        if self._directory is None:
            return {"attempt": attempt or 0, "claim": {}, "resume": None, "skipped": []}
        directory = self._directory
        if self._interval is not None:
            self._interval = Interval(read_experience(directory))
        try:
            is_new_here = self._config.mirror is not None and self._is_new_in(directory, job)
            self._attempt = retried(
                lambda: self._claim(directory, attempt, config, job), self._sleep
            )
        except OSError as error:
            raise volume_error(f"checkpoint: cannot use {directory}: {error}", error) from error
        choice = self._choose(directory, is_new_here=is_new_here)
        self._known = choice.known
        newest = load.reading(directory, lambda: self.newest, self._sleep)
        resume = newest.model_dump() if newest else None
        claim = self._fence.claim if self._fence else {}
        return {
            "attempt": self._attempt, "claim": claim, "resume": resume, "skipped": choice.skipped
        }  # fmt: skip

    def join(self, opened: dict[str, Any], device: torch.device) -> None:
        """Find out whether all ranks can write to the directory. Every rank must call this.

        Args:
            opened: Result of `open` on rank 0.
            device: The run's device.
        """
        self._attempt, self._owner = opened["attempt"], opened["claim"]
        self.shared = self.enabled and all(by_rank(int(self._sees_claim()), device))

    def _sees_claim(self) -> bool:
        """Return whether this rank sees the claim of rank 0, and may write beside it."""
        if self._directory is None:
            return False
        try:
            return holder(self._directory) == self._owner and os.access(self._directory, os.W_OK)
        except OSError:
            return False

    def _is_new_in(self, directory: Path, job: str) -> bool:
        """Return whether this job has not opened the directory before. Runs by hand have no job."""
        held = retried(lambda: holder(directory), self._sleep)
        return held is None or held["job"] != job or not job

    def _choose(self, directory: Path, *, is_new_here: bool) -> load.Choice:
        """Choose the checkpoint to resume from, and start the mirror if there is one."""
        config, url = self._config, self._config.mirror
        if url is None:
            return load.choose(directory, start_over=config.start_over, sleep=self._sleep)
        choice = mirrored.choose(
            directory,
            lambda newest: process.fetch(url, directory, newest, claim=True),
            start_over=config.start_over,
            is_new_here=is_new_here,
            sleep=self._sleep,
        )
        rate = config.mirror_mb_per_second
        self.mirror = process.MirrorProcess(
            directory, url, keep=config.mirror_keep, rate=rate and rate * 2**20
        )
        return choice

    def _claim(self, directory: Path, attempt: int | None, config: dict[str, Any], job: str) -> int:
        """Claim and prepare the directory, and return the number of the attempt."""
        with open_folder(directory, directory):
            pass  # It exists now, and no link leads out of the claim.
        if attempt is None:
            attempt = _next_attempt(directory)
        self._fence = Fence(directory, job, attempt)
        self._fence.open()
        retention.sweep_pending(directory, attempt)
        replace_json(directory / CONFIG, config)
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
        if self._directory is None or self._fence is None or self.is_saved(step):
            return None
        self._last_time = time.monotonic()
        name = CheckpointName(step, self._attempt)
        with self._fenced():
            writer.commit(self._directory, name, checkpoint, self._fence.check)
        return self._add(name)

    def is_saved(self, step: int) -> bool:
        """Return whether the newest checkpoint is of this step. Only rank 0 knows it."""
        return bool(self._known) and self._known[-1].step == step

    def identity(self, save: str) -> dict[str, Any]:
        """Return the identity of a save (`assembly.Claim`)."""
        return self._owner | {"save": save}

    def begin(self, step: int, save: str) -> None:
        """Begin a checkpoint that several ranks write. Only rank 0 calls this method.

        Args:
            step: Number of completed updates.
            save: Random text of this save.

        Raises:
            OSError: If the volume fails.
            FencedError: If a newer attempt owns the directory.
        """
        self._last_time = time.monotonic()
        with self._fenced():
            directory, name = self._place(step)
            check = self._fence.check if self._fence else lambda: None
            assembly.begin(directory, name, self.identity(save), check)

    def write_part(self, step: int, save: str, part: tuple[int, int], pieces: Pieces) -> None:
        """Write this rank's part of a checkpoint that rank 0 has begun.

        Args:
            step: Number of completed updates.
            save: Random text of this save.
            part: Number of this part, from 1, and number of parts.
            pieces: What this rank writes.

        Raises:
            OSError: If the volume fails.
        """
        files = {file: piece_parts(those) for file, those in pieces.items()}
        assembly.write_part(*self._place(step), part, self.identity(save), files)

    def finish(self, parts: int, save: str, checkpoint: Checkpoint) -> CheckpointInfo | None:
        """Commit a checkpoint whose parts are written. Only rank 0 calls this method.

        Args:
            parts: Number of parts.
            save: Random text of this save.
            checkpoint: The state of the run, and the snapshot, of which only the documents are
                used.

        Raises:
            OSError: If the volume fails, or a part is missing.
            FencedError: If a newer attempt owns the directory.
        """
        directory, name = self._place(checkpoint.state.step)
        if self._fence is None:
            return None
        with self._fenced():
            check = self._fence.check
            documents, own = writer.documents_of(checkpoint), self.identity(save)
            assembly.finish(directory, name, parts, own, documents, may_commit=check)
        return self._add(name)

    def lead(self, checkpoint: Checkpoint, total_bytes: int) -> Lead:
        """Return what a process needs to commit a checkpoint. Only rank 0 calls this method."""
        self._last_time = time.monotonic()
        name = CheckpointName(checkpoint.state.step, self._attempt)
        self._ratings[name] = self._value(checkpoint.state.metrics or {})
        rated = [name, *self._known] if self._config.keep_best is not None else []
        values = {str(each): self._rating(each) for each in rated}
        return Lead(
            documents=writer.documents_of(checkpoint),
            known=list(map(str, self._known)),
            ratings={n: None if math.isnan(value) else value for n, value in values.items()},
            config=self._config,
            total_bytes=total_bytes,
        )

    def committed(self, known: Iterable[str], at: float) -> None:
        """Record a checkpoint that a process has committed. Only rank 0 calls this method.

        Args:
            known: Names of the complete checkpoints, oldest first.
            at: Time of the newest one.
        """
        self._known = [name for text in known if (name := CheckpointName.parse(text))]
        self._times = {self._known[-1]: at}

    def postpone(self) -> None:
        """Begin the interval in seconds again, because a save was left out."""
        self._last_time = time.monotonic()

    def abandon(self, step: int) -> None:
        """Delete a checkpoint that is not complete. Only rank 0 calls this method."""
        assembly.abandon(*self._place(step))

    def _place(self, step: int) -> tuple[Path, CheckpointName]:
        if self._directory is None:
            raise ValueError("there is no directory for checkpoints")
        return self._directory, CheckpointName(step, self._attempt)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """After an error of the volume, raise a `FencedError` instead if that is the reason.

        A newer attempt deletes pending directories.
        """
        try:
            yield
        except OSError:
            if self._fence is not None:
                with contextlib.suppress(OSError):
                    self._fence.check()
            raise

    def _add(self, name: CheckpointName) -> CheckpointInfo | None:
        """Record a committed checkpoint, and delete the oldest ones."""
        self._known = [*self._known, name]
        if self._directory is not None and self._fence is not None:
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
