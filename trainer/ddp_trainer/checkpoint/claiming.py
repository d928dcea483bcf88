"""Claim a run's directory for an attempt, and prepare it."""

import os
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint import retention
from ddp_trainer.checkpoint.fence import Claim, Fence, holder
from ddp_trainer.checkpoint.format import CONFIG, names_in
from ddp_trainer.checkpoint.store.directory import replace_json
from ddp_wire.files import open_folder


def claim_directory(
    directory: Path, attempt: int | None, config: dict[str, Any], job: str
) -> Fence:
    """Claim a run's directory, delete half-written checkpoints, and write the config.

    Args:
        directory: The run's directory. It is created if it is missing.
        attempt: Number of the attempt. By default the next free number.
        config: The resolved config.
        job: Uid of the job.

    Raises:
        FencedError: If a newer attempt of this job owns the directory.
        OSError: If the volume fails.
    """
    with open_folder(directory, directory):
        pass  # It exists now, and no link leads out of the claim.
    number = _next_attempt(directory) if attempt is None else attempt
    fence = Fence(directory, job, number)
    fence.open()
    retention.sweep_pending(directory, number)
    replace_json(directory / CONFIG, config)
    return fence


def is_new_in(directory: Path, job: str) -> bool:
    """Return whether a job has not opened a directory before. Runs by hand have no job.

    Raises:
        OSError: If the volume fails.
    """
    held = holder(directory)
    return held is None or held["job"] != job or not job


def is_shared(directory: Path, claim: Claim) -> bool:
    """Return whether this process sees the claim of rank 0, and may write beside it."""
    try:
        return holder(directory) == claim and os.access(directory, os.W_OK)
    except OSError:
        return False


def _next_attempt(directory: Path) -> int:
    """Return a number higher than those of all attempts in the directory."""
    held = holder(directory)
    used = [name.attempt for name in names_in(directory)]
    return max([*used, held["attempt"] if held else -1], default=-1) + 1
