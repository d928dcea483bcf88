"""Write checkpoints atomically: a checkpoint appears as a whole or not at all.

All files of a checkpoint are written to a folder with the suffix `.tmp`, and each file is flushed.
The manifest with their sizes and checksums is written last. Right before the rename the writer
checks that its attempt still owns the directory (`checkpoint.fence`). The rename of the folder
commits the checkpoint, and the parent folder is flushed, so that the rename survives a crash of the
machine.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BUFFERS,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_REST,
    PENDING,
    STATE,
    TASK,
    TASK_REST,
    CheckpointName,
    sync,
    write_json,
    write_manifest,
)
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.checkpoint.tensor_file import write_tensors
from ddp_trainer.names import NamedTensors
from ddp_wire.files import PlantedFileError, held_path, remove, replace_file


def commit(
    run_directory: Path,
    name: CheckpointName,
    checkpoint: Checkpoint,
    may_commit: Callable[[], None],
) -> Path:
    """Write one checkpoint under its final name. Only one process of a run may call this.

    The files are written and flushed in a pending directory, the manifest last. Then the directory
    is renamed, and the rename is flushed. A crash at any point leaves all earlier checkpoints
    unchanged, and at most one pending directory.

    Args:
        run_directory: The run's directory. It must exist.
        name: Step and attempt.
        checkpoint: Checkpoint in host memory.
        may_commit: Function that is called right before the rename. It raises an error if this
            attempt no longer owns the directory.

    Returns:
        The committed directory.

    Raises:
        OSError: If the volume fails, or the name exists. Then the function deletes all its files.
    """
    final = run_directory / str(name)
    pending = run_directory / (str(name) + PENDING)
    if os.path.lexists(final):
        raise FileExistsError(f"{final} exists already")
    pending.mkdir()
    try:
        with held_path(pending, run_directory) as folder:
            write_checkpoint(folder, name, checkpoint)
            _check_in_place(folder, pending)
        may_commit()
        pending.rename(final)
        sync(run_directory)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(pending, run_directory)
        raise
    return final


def write_checkpoint(folder: Path, name: CheckpointName, checkpoint: Checkpoint) -> None:
    """Write all files of a checkpoint to an empty folder, the manifest last, and flush them.

    Raises:
        OSError: If the volume fails.
    """
    snapshot = checkpoint.snapshot
    entries = {}
    for file, tensors in _files(snapshot).items():
        entries[file] = write_tensors(folder / file, tensors)
        sync(folder / file)
    write_json(folder / OPTIMIZER_REST, snapshot.optimizer_rest)
    if snapshot.task_rest is not None:
        write_json(folder / TASK_REST, snapshot.task_rest)
    write_json(folder / STATE, checkpoint.state.document())
    write_manifest(folder, name, entries)
    sync(folder)


def _check_in_place(folder: Path, pending: Path) -> None:
    if not os.path.samestat(folder.stat(), pending.lstat()):
        raise PlantedFileError(pending, "folder")


def _files(snapshot: Snapshot) -> dict[str, NamedTensors]:
    optional = {
        AVERAGE: snapshot.average,
        COMPRESSION: snapshot.compression,
        BUFFERS: snapshot.buffers,
        TASK: snapshot.task,
    }
    always = {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}
    return always | {file: tensors for file, tensors in optional.items() if len(tensors)}


def replace_json(path: Path, document: object) -> None:
    """Replace a JSON document atomically, even if several processes do so at the same time."""
    replace_file(path, json.dumps(document, indent=1), sync=True)
    sync(path.parent)
