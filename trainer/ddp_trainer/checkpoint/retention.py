"""Choose which checkpoints to keep, and delete all others and unfinished directories."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.checkpoint.contents import verify_contents
from ddp_trainer.checkpoint.format import (
    BROKEN,
    PENDING,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
)
from ddp_trainer.checkpoint.reading import claimed
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import InputError


def kept(
    known: list[CheckpointName], config: CheckpointConfig, rating: Callable[[CheckpointName], float]
) -> set[CheckpointName]:
    """Return the checkpoints that the policies keep. The newest one is always among them.

    Args:
        known: Complete checkpoints, oldest first.
        config: The policies.
        rating: Function that returns how good a checkpoint is: higher is better, and NaN unknown.
    """
    found = set(known[-config.keep :])
    if config.keep_every_steps is not None:
        reached = 0
        for name in known:
            multiple = name.step // config.keep_every_steps
            if multiple > reached:
                found.add(name)
                reached = multiple
    if config.keep_best is not None:
        rated = [(value, name) for name in known if not math.isnan(value := rating(name))]
        if rated:
            found.add(max(rated)[1])
    return found


def delete_others(
    run_directory: Path,
    known: list[CheckpointName],
    config: CheckpointConfig,
    rating: Callable[[CheckpointName], float],
    may_delete: Callable[[], None],
) -> list[CheckpointName]:
    """Delete the known checkpoints that no policy keeps, and older damaged ones.

    Call this function right after a commit. It deletes nothing if the newest checkpoint is not
    complete, and no checkpoint that a program reads. It never deletes checkpoints that another
    attempt has committed since this attempt started.

    Args:
        run_directory: The run's directory.
        known: Checkpoints that this attempt found or committed, oldest first.
        config: The policies.
        rating: Function that returns how good a checkpoint is: higher is better, and NaN unknown.
        may_delete: Function that is called first. It raises an error if this attempt no longer owns
            the directory.

    Returns:
        The known checkpoints that remain.
    """
    may_delete()
    if not _is_complete(run_directory / str(known[-1])):
        return known
    wanted = kept(known, config, rating)
    left = [n for n in known if n in wanted or not _delete_unread(run_directory, n)]
    oldest = known[-config.keep :][0]
    for name in names_in(run_directory):
        if name.suffix == BROKEN and name.step < oldest.step:
            _delete(run_directory, name)
    return left


def _is_complete(path: Path) -> bool:
    try:
        verify_contents(path, checksums=False)
    except (BrokenCheckpointError, InputError, OSError):
        return False
    return True


def _delete_unread(run_directory: Path, name: CheckpointName) -> bool:
    """Delete a checkpoint unless a program reads it. Return whether it is gone."""
    with claimed(run_directory / str(name)) as free:
        if free:
            _delete(run_directory, name)
    return free


def sweep_pending(run_directory: Path, attempt: int) -> list[str]:
    """Delete the half-written and half-deleted checkpoints of all attempts up to this one.

    Returns:
        Names of the deleted directories.
    """
    stale = [n for n in names_in(run_directory) if n.suffix == PENDING and n.attempt <= attempt]
    for name in stale:
        _delete(run_directory, name)
    return [str(name) for name in stale]


def _delete(run_directory: Path, name: CheckpointName) -> None:
    with contextlib.suppress(OSError):  # The next attempt tries again.
        DirectoryStore(run_directory).delete(str(name))
