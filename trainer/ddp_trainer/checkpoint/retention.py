"""Which checkpoints stay."""

import shutil
from pathlib import Path

from ddp_trainer.checkpoint.format import BROKEN, PENDING, Name, names_in


def keep_newest(run_directory: Path, count: int) -> None:
    """Deletes all but the newest checkpoints, and broken ones that are older than those.

    Called right after a commit, so the newest one is known to be whole.

    Args:
        run_directory: The run's own directory.
        count: How many stay; at least 1.
    """
    names = names_in(run_directory)
    committed = [name for name in names if not name.suffix]
    kept = committed[-count:]
    for name in names:
        if name.suffix == PENDING or name in kept:
            continue
        if name.suffix == BROKEN and name.step >= kept[0].step:
            continue
        _delete(run_directory, name)


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
