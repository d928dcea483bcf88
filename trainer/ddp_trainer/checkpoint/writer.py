"""Write checkpoints atomically: a checkpoint appears as a whole or not at all.

The manifest with sizes and checksums is written last. Right before the commit the writer checks
that its attempt still owns the directory (`checkpoint.fence`). The store commits the checkpoint
(`checkpoint.store`).

Several processes may write a part each (`checkpoint.assembly`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.division import files_of
from ddp_trainer.checkpoint.format import (
    OPTIMIZER_REST,
    STATE,
    TASK_REST,
    CheckpointName,
    json_bytes,
    manifest_of,
)
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.store.base import Entry, Writable
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.checkpoint.tensor_file import tensor_parts


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
    store = DirectoryStore(run_directory)
    with store.begin(str(name)) as pending:
        files = write_files(pending, checkpoint)
        pending.commit(json_bytes(manifest_of(name, files)), may_commit)
    return run_directory / str(name)


def write_files(pending: Writable, checkpoint: Checkpoint) -> dict[str, Entry]:
    """Write all files of a checkpoint except the manifest, and return the entry of each.

    Raises:
        OSError: If the store fails.
    """
    snapshot = checkpoint.snapshot
    files = {
        file: pending.put(file, tensor_parts(tensors))
        for file, tensors in files_of(snapshot).items()
    }
    for file, document in documents_of(checkpoint).items():
        files[file] = pending.put(file, [json_bytes(document)])
    return files


def documents_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the JSON documents of a checkpoint, by file."""
    snapshot = checkpoint.snapshot
    documents = {OPTIMIZER_REST: snapshot.optimizer_rest, STATE: checkpoint.state.document()}
    if snapshot.task_rest is not None:
        documents[TASK_REST] = snapshot.task_rest
    return documents
