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

from safetensors import SafetensorError
from safetensors.torch import save_file

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
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot, Tensors
from ddp_trainer.checkpoint.volume import os_error
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
            _write_all(folder, name, checkpoint)
            _check_in_place(folder, pending)
        may_commit()
        pending.rename(final)
        sync(run_directory)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(pending, run_directory)
        raise
    return final


def _write_all(folder: Path, name: CheckpointName, checkpoint: Checkpoint) -> None:
    snapshot = checkpoint.snapshot
    for file, tensors in _files(snapshot).items():
        _write(tensors, folder / file)
    write_json(folder / OPTIMIZER_REST, snapshot.optimizer_rest)
    if snapshot.task_rest is not None:
        write_json(folder / TASK_REST, snapshot.task_rest)
    write_json(folder / STATE, checkpoint.state.document())
    write_manifest(folder, name)
    sync(folder)


def _check_in_place(folder: Path, pending: Path) -> None:
    if not os.path.samestat(folder.stat(), pending.lstat()):
        raise PlantedFileError(pending, "folder")


def _write(tensors: Tensors, path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise os_error(error) from error
    sync(path)


def _files(snapshot: Snapshot) -> dict[str, Tensors]:
    optional = {
        AVERAGE: snapshot.average,
        COMPRESSION: snapshot.compression,
        BUFFERS: snapshot.buffers,
        TASK: snapshot.task,
    }
    always = {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}
    files = always | {file: tensors for file, tensors in optional.items() if len(tensors)}
    return {file: dict(tensors.items()) for file, tensors in files.items()}


def replace_json(path: Path, document: object) -> None:
    """Replace a JSON document atomically, even if several processes do so at the same time."""
    replace_file(path, json.dumps(document, indent=1), sync=True)
    sync(path.parent)
