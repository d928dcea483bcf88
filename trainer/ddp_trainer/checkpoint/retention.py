"""Which checkpoints stay."""

import shutil
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.checkpoint.format import BROKEN, PENDING, Name, names_in


def keep_newest(
    run_directory: Path, known: list[Name], count: int, may_delete: Callable[[], None]
) -> list[Name]:
    """Deletes all but the newest known checkpoints, and broken ones that are older than those.

    Called right after a commit, so the newest one is known to be whole. What another attempt has
    committed meanwhile is not known, and stays.

    Args:
        run_directory: The run's own directory.
        known: What this attempt found or committed, oldest first.
        count: How many stay; at least 1.
        may_delete: Called first; raises if the directory is no longer ours.

    Returns:
        The known checkpoints that are left.
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
    """Deletes what attempts up to this one left half-written or half-deleted.

    Returns:
        The names that were deleted.
    """
    stale = [n for n in names_in(run_directory) if n.suffix == PENDING and n.attempt <= attempt]
    for name in stale:
        shutil.rmtree(run_directory / str(name), ignore_errors=True)
    return [str(name) for name in stale]


def _delete(run_directory: Path, name: Name) -> None:
    """Takes the final name away first, so that a half-deleted one never looks like a checkpoint."""
    pending = run_directory / f"step-{name.step:08d}.attempt-{name.attempt}{PENDING}"
    try:
        (run_directory / str(name)).rename(pending)
    except OSError:
        return
    shutil.rmtree(pending, ignore_errors=True)
