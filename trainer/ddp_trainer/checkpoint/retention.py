"""Delete old checkpoints and unfinished directories."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.checkpoint.format import BROKEN, PENDING, CheckpointName, names_in
from ddp_trainer.checkpoint.store.directory import DirectoryStore


def keep_newest(
    run_directory: Path, known: list[CheckpointName], count: int, may_delete: Callable[[], None]
) -> list[CheckpointName]:
    """Keep the newest known checkpoints. Delete older ones and older damaged ones.

    Call this function right after a commit, so that the newest checkpoint is known to be complete.
    It never deletes checkpoints that another attempt has committed since this attempt started.

    Args:
        run_directory: The run's directory.
        known: Checkpoints that this attempt found or committed, oldest first.
        count: Number of checkpoints to keep; at least 1.
        may_delete: Function that is called first. It raises an error if this attempt no longer owns
            the directory.

    Returns:
        The known checkpoints that remain.
    """
    kept = known[-count:]
    may_delete()
    for name in known[:-count]:
        _delete(run_directory, name)
    for name in names_in(run_directory):
        if name.suffix == BROKEN and name.step < kept[0].step:
            _delete(run_directory, name)
    return kept


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
