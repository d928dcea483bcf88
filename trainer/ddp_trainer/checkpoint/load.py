"""Select the newest complete checkpoint, and distribute it to every rank.

Rank 0 checks the checkpoints of a run from the newest to the oldest, until one is complete:

- A checkpoint is damaged: a file is missing, differs from its checksum, or has content that no
  trainer writes. The checkpoint is skipped and renamed, so that its name is free and users can
  inspect it.
- The volume fails, which is no evidence of damage. The read is retried for some seconds. Then the
  attempt ends with an error, because an older checkpoint would lose progress.
- A checkpoint has an unknown format, because a newer release wrote it. The attempt ends with an
    error.

Then rank 0 reads the chosen checkpoint and sends it to all other ranks, so that only rank 0 needs
the volume. It sends the JSON documents at once, and the tensors a few at a time
(`checkpoint.stream`).
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ddp_trainer.checkpoint.contents import read_contents, read_index, verify_contents
from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BROKEN,
    BUFFERS,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    PENDING,
    SET_ASIDE,
    TASK,
    BrokenCheckpointError,
    CheckpointName,
    UnreadableCheckpointError,
    names_in,
)
from ddp_trainer.checkpoint.parts import StoredTensor
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot, Tensors
from ddp_trainer.checkpoint.stream import TensorStream, read_numbers, read_stored
from ddp_trainer.checkpoint.volume import Sleep, os_error, retried, volume_error
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.collectives import on_rank
from ddp_trainer.saved_state import SavedState

T = TypeVar("T")


class NoneUsableError(InputError):
    """Error for a run's directory with checkpoints of which none is usable."""


MAX_REASONS = 3
"""Maximum number of checkpoints for which a message states the damage."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of the selection of the checkpoint from which a run resumes."""

    known: list[CheckpointName]
    """Names of the newest complete checkpoint and of all older ones, oldest first. Empty without a
    complete checkpoint."""
    skipped: list[str]
    """One sentence per newer damaged checkpoint, or a single sentence about all of them."""

    @property
    def name(self) -> CheckpointName | None:
        """Name of the newest complete checkpoint, or None."""
        return self.known[-1] if self.known else None


def listed(run_directory: Path, sleep: Sleep = time.sleep) -> list[CheckpointName]:
    """Return the names of all checkpoints that are not half-written, oldest first.

    Raises:
        ReportedError: If the directory cannot be read, even after retries.
    """
    names = reading(run_directory, lambda: names_in(run_directory), sleep)
    return [name for name in names if name.suffix != PENDING]


def choose(
    run_directory: Path,
    names: list[CheckpointName] | None = None,
    *,
    start_over: bool = False,
    sleep: Sleep = time.sleep,
) -> Choice:
    """Choose the newest complete checkpoint, and rename newer damaged checkpoints.

    A damaged checkpoint is renamed, not deleted, so that users can inspect it. Its name becomes
    free. No checkpoint is renamed before a complete one is found, so an error changes nothing.

    Args:
        run_directory: The run's directory.
        names: Result of `listed`. By default the directory is read.
        start_over: Whether to set all checkpoints aside if none is usable.
        sleep: Function that waits between two tries to read.

    Raises:
        InputError: If a checkpoint has an unknown format, or the right to read one is missing.
        NoneUsableError: If there are checkpoints but none is usable, and the run must not start
            over.
        VolumeError: If the volume fails. This is no evidence that a checkpoint is damaged.
    """
    names = listed(run_directory, sleep) if names is None else names
    whole = [name for name in names if not name.suffix]
    damaged: dict[CheckpointName, BrokenCheckpointError] = {}
    while whole and (reason := _damage(run_directory / str(whole[-1]), sleep)):
        damaged[whole.pop()] = reason
    if whole or not names:
        return Choice(
            whole, [_rename_broken(run_directory / str(n), r) for n, r in damaged.items()]
        )
    _check_rights(run_directory, damaged)
    reasons = _listed(names, damaged)
    if not start_over:
        raise NoneUsableError(
            f"checkpoint: no checkpoint in {run_directory} is usable ({reasons}); restore one of"
            " them, or set checkpoint.start_over (in a job: checkpoint.startOver) to train from the"
            " beginning"
        )
    try:
        folder = retried(lambda: _set_aside(run_directory), sleep)
    except OSError as error:
        sentence = f"checkpoint: cannot move the checkpoints in {run_directory}: {error}"
        raise volume_error(sentence, error) from error
    sentence = (
        "training starts from the beginning, because checkpoint.start_over is set and no checkpoint"
        f" in {run_directory} is usable ({reasons}); they were moved to {folder}"
    )
    return Choice([], [sentence])


def receive(
    path: Path | None, device: torch.device, sleep: Sleep = time.sleep, src: int = 0
) -> Checkpoint:
    """Read a checkpoint on one rank, and return it on every rank. Every rank must call it.

    Only that rank needs access to the volume. It reads a tensor only when the caller iterates over
    it.

    Args:
        path: The checkpoint, on the rank that reads it.
        device: The run's device, for the broadcast of the tensors.
        sleep: Function that waits between two tries to read.
        src: The rank that reads.

    Returns:
        The checkpoint. Its tensors are streams, over which every rank must iterate.

    Raises:
        VolumeError: On every rank, if the rank cannot read the checkpoint.
    """
    folder = path or Path()
    index: dict[str, dict[str, StoredTensor]] = {}  # Only the rank that reads fills it.

    def open_checkpoint() -> dict[str, Any]:
        for file, tensors in read_index(folder).items():
            index[file] = {tensor.name: tensor for tensor in tensors}
        return read_contents(folder)

    document = on_rank(
        src, lambda: reading(folder, lambda: _checked(open_checkpoint), sleep), device
    )

    def read(act: Callable[[], Tensors]) -> Tensors:
        return reading(folder, lambda: _checked(act), sleep)

    def stream(file: str) -> TensorStream:
        def source(names: list[str]) -> Tensors:
            return {name: read_stored(index[file][name]) for name in names}

        def ranges(name: str, first: int, last: int) -> Tensor:
            return read_numbers(index[file][name], first, last)

        return TensorStream(source, document["tensors"][file], device, read, src, ranges=ranges)

    snapshot = Snapshot(
        model=stream(MODEL),
        optimizer=stream(OPTIMIZER),
        optimizer_rest=document["optimizer_rest"],
        average=stream(AVERAGE),
        compression=stream(COMPRESSION),
        buffers=stream(BUFFERS),
        task=stream(TASK),
        task_rest=document["task_rest"],
    )
    return Checkpoint(SavedState.model_validate(document["state"]), snapshot)


def reading(path: Path, read: Callable[[], T], sleep: Sleep) -> T:
    """Return the result of `read`, which reads `path`.

    Raises:
        ReportedError: If `path` cannot be read, even after retries.
    """
    try:
        return retried(read, sleep)
    except OSError as error:
        sentence = (
            f"checkpoint: cannot read {path}: {error}; an error of the volume is no"
            " evidence of damage, so the checkpoint stays as it is"
        )
        raise volume_error(sentence, error) from error


def _damage(path: Path, sleep: Sleep) -> BrokenCheckpointError | None:
    """Return the evidence that a checkpoint is damaged, or None for a complete one."""
    try:
        reading(path, lambda: verify_contents(path), sleep)
    except BrokenCheckpointError as error:
        return error
    return None


def _check_rights(run_directory: Path, damaged: Mapping[CheckpointName, Exception]) -> None:
    """Refuse to start over if only permissions are missing, which the user can correct."""
    for name, reason in damaged.items():
        if isinstance(reason, UnreadableCheckpointError):
            raise InputError(
                f"checkpoint: {run_directory / str(name)} stays as it is: {reason}, and there is no"
                " older complete checkpoint; give the user of the trainer the right to read it, or"
                " remove it"
            )


def _listed(names: list[CheckpointName], damaged: Mapping[CheckpointName, Exception]) -> str:
    """Return the reasons why no checkpoint is usable, newest first."""
    earlier = "it was damaged at an earlier start"
    reasons = [f"{name}: {damaged.get(name, earlier)}" for name in reversed(names)]
    more = len(reasons) - MAX_REASONS
    return "; ".join(reasons[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _set_aside(run_directory: Path) -> Path:
    """Move all checkpoints to a new folder, and return the folder.

    Retention never looks into that folder, so the new run cannot delete them.
    """
    paths = (run_directory / f"{SET_ASIDE}{number}" for number in itertools.count(1))
    folder = next(path for path in paths if not os.path.lexists(path))
    folder.mkdir()
    for name in names_in(run_directory):
        if name.suffix != PENDING:
            (run_directory / str(name)).rename(folder / str(name))
    return folder


def _checked(read: Callable[[], T]) -> T:
    """Read a checkpoint that has passed its check, so that any error is an error of the volume."""
    try:
        return read()
    except BrokenCheckpointError as error:
        raise os_error(error) from error


def _rename_broken(path: Path, reason: BrokenCheckpointError) -> str:
    """Rename a damaged checkpoint, and return a sentence about it."""
    broken = path.name + BROKEN
    kept = f"it was renamed to {broken}"
    try:
        path.rename(path.with_name(broken))
    except OSError as error:
        # For example, an earlier attempt left a directory of the new name.
        kept = f"it stays there, because renaming it to {broken} failed ({error.strerror})"
    state = "is not usable" if isinstance(reason, UnreadableCheckpointError) else "is damaged"
    return f"checkpoint {path} {state}: {reason}; {kept}; trying the next older checkpoint"
