"""Write checkpoints atomically: a checkpoint appears as a whole or not at all.

The manifest with sizes and checksums is written last. Right before the commit the writer checks
that its attempt still owns the directory (`checkpoint.fence`). The store commits the checkpoint
(`checkpoint.store`).

One process may write everything (`commit`), or several processes a part each:

    begin             one process: create the folder
      write_part      each of them: write and flush its files, then a receipt with their checksums
    finish            one process: check all receipts, write the documents and the manifest, commit

A receipt names the claim of its attempt, which is random. So the parts of two gangs that believe to
be the same attempt never meet in one checkpoint.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.division import Pieces, files_of
from ddp_trainer.checkpoint.format import (
    LARGEST_MANIFEST,
    OPTIMIZER_REST,
    PENDING,
    STATE,
    TASK_REST,
    BrokenCheckpointError,
    CheckpointName,
    json_bytes,
    manifest_of,
    part_name,
    read_json,
)
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.checkpoint.store.base import Entry, Writable
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.checkpoint.tensor_file import piece_parts, tensor_parts

Claim = Mapping[str, Any]
"""Claim of an attempt on the run's directory (`checkpoint.fence`)."""


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
    return files | _write_documents(pending, checkpoint)


def _write_documents(pending: Writable, checkpoint: Checkpoint) -> dict[str, Entry]:
    """Write the JSON documents of a checkpoint, and return the entry of each."""
    snapshot = checkpoint.snapshot
    documents = {OPTIMIZER_REST: snapshot.optimizer_rest, STATE: checkpoint.state.document()}
    if snapshot.task_rest is not None:
        documents[TASK_REST] = snapshot.task_rest
    return {file: pending.put(file, [json_bytes(each)]) for file, each in documents.items()}


def begin(run_directory: Path, name: CheckpointName) -> None:
    """Create the folder of a checkpoint that several processes write.

    Raises:
        OSError: If the volume fails, or the name exists.
    """
    DirectoryStore(run_directory).create(str(name))


def write_part(
    run_directory: Path, name: CheckpointName, part: tuple[int, int], claim: Claim, pieces: Pieces
) -> None:
    """Write one part of a checkpoint, and flush it.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        part: Number of this part, from 1, and number of parts.
        claim: Claim of this attempt.
        pieces: What this process writes.

    Raises:
        OSError: If the volume fails, or the checkpoint is not begun.
    """
    with DirectoryStore(run_directory).joined(str(name)) as pending:
        files = {}
        for file, those in pieces.items():
            own = part_name(file, *part)
            files[own] = pending.put(own, piece_parts(those))
        receipt = {"claim": dict(claim), "files": files}
        pending.put(_receipt(part[0]), [json_bytes(receipt)])


def finish(
    run_directory: Path,
    name: CheckpointName,
    parts: int,
    claim: Claim,
    checkpoint: Checkpoint,
    *,
    may_commit: Callable[[], None],
) -> Path:
    """Commit a checkpoint whose parts are all written. Only one process of a run may call this.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        parts: Number of parts.
        claim: Claim of this attempt.
        checkpoint: The state of the run, and the snapshot, of which only the documents are used.
        may_commit: As for `commit`.

    Returns:
        The committed directory.

    Raises:
        OSError: If the volume fails, or a part is missing.
    """
    with DirectoryStore(run_directory).joined(str(name)) as pending:
        files = _receipts(pending.folder, parts, claim)
        files |= _write_documents(pending, checkpoint)
        for number in range(1, parts + 1):
            (pending.folder / _receipt(number)).unlink()
        pending.commit(json_bytes(manifest_of(name, files)), may_commit)
    return run_directory / str(name)


def abandon(run_directory: Path, name: CheckpointName) -> None:
    """Delete a checkpoint that is not committed, as far as the volume permits."""
    with contextlib.suppress(OSError):
        DirectoryStore(run_directory).delete(str(name) + PENDING)


def _receipt(number: int) -> str:
    return f"part-{number:05d}.json"


def _receipts(folder: Path, parts: int, claim: Claim) -> dict[str, Entry]:
    """Return the manifest entries of all parts, after a check of their sizes.

    Raises:
        OSError: If the volume fails, or if a part is missing or is that of another gang.
    """
    entries: dict[str, Entry] = {}
    for number in range(1, parts + 1):
        try:
            receipt = read_json(folder / _receipt(number), LARGEST_MANIFEST)
        except BrokenCheckpointError as error:
            raise OSError(f"part {number} of {parts} is missing ({error})") from error
        if receipt["claim"] != dict(claim):
            raise OSError(f"part {number} of {parts} is that of another process")
        for file, entry in receipt["files"].items():
            size = (folder / file).lstat().st_size
            if size != entry["bytes"]:
                raise OSError(f"{file} has {size} bytes, not {entry['bytes']}")
        entries |= receipt["files"]
    return entries
