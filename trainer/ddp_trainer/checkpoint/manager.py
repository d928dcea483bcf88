"""Manage the checkpoints of one run: open the directory, resume, save when due, delete old ones.

The manager calls the modules with the single steps: the claim on the directory (`fence`), the
choice of a checkpoint (`load`), the atomic write (`writer`) and the deletion of old checkpoints
(`retention`). It remembers which checkpoints this attempt has found or written, and deletes only
these, because another attempt may have written the rest.

An attempt that starts from a newer state in memory reads no checkpoint. Then the manager knows only
the names of those that it has found, and checks them before a rollback.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint import assembly, load, mirrored, retention, writer
from ddp_trainer.checkpoint.background_process import Lead
from ddp_trainer.checkpoint.claiming import claim_directory, is_new_in, is_shared
from ddp_trainer.checkpoint.division import Pieces
from ddp_trainer.checkpoint.fence import Fence
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.interval import Interval, read_experience
from ddp_trainer.checkpoint.ratings import Ratings
from ddp_trainer.checkpoint.record_choice import Listed
from ddp_trainer.checkpoint.remote import process
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.tensor_file import piece_parts
from ddp_trainer.checkpoint.volume import Sleep, retried, volume_error
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.ranks.collectives import by_rank
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
        self._listed: list[CheckpointName] = []
        """Checkpoints at the start of this attempt, damaged ones included."""
        self._known: list[CheckpointName] = []
        self._is_checked = True
        """Whether the newest known checkpoint was checked, or written by this attempt."""
        self._is_new_here = False
        self._ratings = Ratings(self._directory, config)
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
        """The newest checkpoint that this process found or saved, unless the volume fails."""
        with contextlib.suppress(OSError):
            return self._newest()
        return None

    def _newest(self) -> CheckpointInfo | None:
        """Return the newest checkpoint. Its time is read once, which may raise an `OSError`."""
        if self._directory is None or not self._known:
            return None
        name, seconds = self._known[-1], self.interval_seconds
        path = self._directory / str(name)
        if name not in self._times:
            self._times = {name: path.stat().st_mtime}
        at = self._times[name]
        return CheckpointInfo(step=name.step, path=str(path), at=at, interval_seconds=seconds)

    @property
    def interval_seconds(self) -> float | None:
        """Seconds between two checkpoints. None if no clock decides."""
        if self._interval is not None:
            return self._interval.seconds
        seconds = self._config.every_seconds
        return seconds if isinstance(seconds, int) else None

    def open(self, attempt: int | None, config: dict[str, Any], job: str = "") -> dict[str, Any]:
        """Claim and prepare the run's directory, and list its checkpoints. Only rank 0 calls this.

        Args:
            attempt: This attempt's number. By default the next free number.
            config: The resolved config, which is written to the directory.
            job: Uid of the job.

        Returns:
            JSON: `attempt`, the number of this attempt. `claim`, its claim on the directory.
            `resume`, the fields of the `CheckpointInfo` of the newest checkpoint, or null.
            `listed`, the fields of a `Listed`, or null if the mirror may hold a newer checkpoint.

        Raises:
            InputError: If the directory cannot be used.
            VolumeError: If the volume fails.
            FencedError: If a newer attempt of this job owns the directory.
        """
        if self._directory is None:
            none = asdict(Listed())
            return {"attempt": attempt or 0, "claim": {}, "listed": none, "resume": None}
        directory = self._directory
        if self._interval is not None:
            self._interval = Interval(read_experience(directory))
        try:
            mirrors = self._config.mirror is not None
            self._is_new_here = mirrors and retried(partial(is_new_in, directory, job), self._sleep)
            claim = partial(claim_directory, directory, attempt, config, job)
            self._fence = retried(claim, self._sleep)
        except OSError as error:
            raise volume_error(f"checkpoint: cannot use {directory}: {error}", error) from error
        self._owner = self._fence.claim
        self._attempt = self._owner["attempt"]
        self._listed = load.listed(directory, self._sleep)
        self._known = [name for name in self._listed if not name.suffix]
        self._is_checked = not self._known
        reads_mirror = self._is_new_here or (mirrors and not self._known)
        listed = None if reads_mirror else asdict(Listed.of(self._listed))
        opened = {"attempt": self._attempt, "claim": self._owner, "listed": listed, "resume": None}
        with contextlib.suppress(OSError):  # `choose` reports an error of the volume.
            opened["resume"] = newest.model_dump() if (newest := self._newest()) else None
        return opened

    def choose(self) -> dict[str, Any]:
        """Check the checkpoints after `open`, and choose the newest complete one. Only on rank 0.

        Returns:
            JSON: `resume`, the fields of the `CheckpointInfo` to resume from, or null. `skipped`,
            one sentence per newer checkpoint that is damaged, or one about all of them if the run
            starts over.

        Raises:
            InputError: If the checkpoints cannot be used.
            VolumeError: If the volume fails.
        """
        if self._directory is None:
            return {"resume": None, "skipped": []}
        choice = self._choice(self._directory)
        self._known, self._is_checked = choice.known, True
        newest = load.reading(self._directory, self._newest, self._sleep)
        return {"resume": newest.model_dump() if newest else None, "skipped": choice.skipped}

    def check_newest(self) -> list[str]:
        """Check the newest checkpoint, unless this attempt has. Only rank 0 calls this.

        Returns:
            One sentence per checkpoint that is damaged, which the manager then no longer knows.

        Raises:
            InputError: If a checkpoint cannot be used.
            VolumeError: If the volume fails.
        """
        if self._directory is None or self._is_checked:
            return []
        try:
            choice = load.choose(self._directory, sleep=self._sleep)
        except load.NoneUsableError as error:
            choice = load.Choice([], [str(error)])
        self._known, self._is_checked = choice.known, True
        return choice.skipped

    def join(self, opened: dict[str, Any], device: torch.device) -> None:
        """Find out whether all ranks can write to the directory. Every rank must call this.

        Args:
            opened: Result of `open` on rank 0.
            device: The run's device.
        """
        self._attempt, self._owner = opened["attempt"], opened["claim"]
        sees = self._directory is not None and is_shared(self._directory, self._owner)
        self.shared = all(by_rank(int(sees), device))

    def _choice(self, directory: Path) -> load.Choice:
        """Return the choice of the checkpoint to resume from."""
        over, url = self._config.start_over, self._config.mirror
        if url is None:
            return load.choose(directory, self._listed, start_over=over, sleep=self._sleep)
        fetch = partial(process.fetch, url, directory, claim=True)
        is_new = self._is_new_here
        return mirrored.choose(
            directory, fetch, start_over=over, is_new_here=is_new, sleep=self._sleep
        )

    def start_mirror(self) -> None:
        """Start the mirror, if there is one. Only rank 0 calls this, after the choice of a state.

        Raises:
            OSError: If the process cannot be started.
        """
        config, directory = self._config, self._directory
        if directory is not None and config.mirror is not None:
            rate = config.mirror_mb_per_second
            self.mirror = process.MirrorProcess(
                directory, config.mirror, keep=config.mirror_keep, rate=rate and rate * 2**20
            )

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
        seconds = self.interval_seconds if self.enabled else None
        return seconds is not None and time.monotonic() - self._last_time >= seconds

    def measured(self, seconds: float) -> str | None:
        """Add the seconds for which a save stopped training.

        Returns:
            A sentence about the interval, if the manager has chosen a clearly different one.
        """
        return None if self._interval is None else self._interval.measured(seconds)

    def is_best(self, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation is better than those of all known checkpoints."""
        return self._ratings.is_best(metrics, self._known)

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
        """Return whether a complete checkpoint is of this step. Only rank 0 knows it."""
        return self._is_checked and bool(self._known) and self._known[-1].step == step

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
            documents, own = writer.documents_of(checkpoint), self.identity(save)
            assembly.finish(directory, name, parts, own, documents, may_commit=self._fence.check)
        return self._add(name)

    def lead(self, checkpoint: Checkpoint, total_bytes: int) -> Lead:
        """Return what a process needs to commit a checkpoint. Only rank 0 calls this method."""
        self._last_time = time.monotonic()
        name = CheckpointName(checkpoint.state.step, self._attempt)
        self._ratings.add(name, checkpoint.state.metrics)
        return Lead(
            documents=writer.documents_of(checkpoint),
            known=list(map(str, self._known)),
            ratings=self._ratings.documents([name, *self._known]),
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
        self._is_checked = True
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
        self._known, self._is_checked = [*self._known, name], True
        self._times = {name: time.time()}  # It is committed, so no error may follow.
        if self._directory is not None and self._fence is not None:
            with contextlib.suppress(OSError):  # The next save tries again to delete.
                self._known = retention.delete_others(
                    self._directory, self._known, self._config, self._ratings.of, self._fence.check
                )
        return self.newest
