"""Choose the newest checkpoint of a run's directory and of its mirror."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddp_trainer.checkpoint import load
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.remote.fetching import Fetched
from ddp_trainer.checkpoint.volume import Sleep
from ddp_trainer.errors import ReportedError

Fetch = Callable[[CheckpointName | None], Fetched]
"""Function that copies the newest checkpoint of the mirror to the directory, if it is newer than
the given one."""


def choose(
    run_directory: Path, fetch: Fetch, *, start_over: bool, is_new_here: bool, sleep: Sleep
) -> load.Choice:
    """Choose the newest whole checkpoint of both places. Copy it to the directory first.

    The mirror is read only if the directory has no usable checkpoint, or the job opens it for the
    first time, for example in another cluster. So a restart does not wait for an object store.

    Args:
        run_directory: The run's directory.
        fetch: Function that reads the mirror.
        start_over: Whether to set all checkpoints aside if none is usable, also in the mirror.
        is_new_here: Whether this job has not opened the directory before.
        sleep: Function that waits between two tries to read.

    Raises:
        InputError: As `load.choose`, or if the user must correct the mirror.
        NoneUsableError: If there are checkpoints but none is usable, and the run must not start
            over.
        VolumeError: If the volume fails, or if no checkpoint is usable and the mirror fails. It may
            hold one, so the run must not start over.
    """
    try:
        local = load.choose(run_directory, sleep=sleep)
    except load.NoneUsableError:
        local = load.Choice([], [])
    if local.name is not None and not is_new_here:
        return local
    try:
        fetched = fetch(local.name)
    except ReportedError as error:
        if local.name is None:
            raise
        return replace(local, skipped=[*local.skipped, f"{error}; the directory has a checkpoint"])
    sentences = [*local.skipped, *fetched.skipped]
    if fetched.name is not None:
        sentences.append(f"checkpoint {fetched.name} was copied from the mirror to {run_directory}")
    elif local.name is not None:
        return replace(local, skipped=sentences)
    elif fetched.skipped and not start_over:
        raise load.NoneUsableError(
            f"checkpoint: no checkpoint of the mirror is usable ({'; '.join(fetched.skipped)}), and"
            f" {run_directory} has none; restore one of them, or set checkpoint.start_over (in a"
            " job: checkpoint.startOver) to train from the beginning"
        )
    chosen = load.choose(run_directory, start_over=start_over, sleep=sleep)
    return replace(chosen, skipped=[*sentences, *chosen.skipped])
