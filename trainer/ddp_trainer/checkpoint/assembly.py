"""Assemble a checkpoint from parts that several processes write.

    begin             one process: create the folder, with a mark of the save
      write_part      each of them: write and flush its files, then a receipt with their checksums
    finish            one process: check all receipts, write the documents and the manifest, commit

Mark and receipts name the save: the claim of its attempt, which is random, and a random number. So
the parts of two gangs that believe to be the same attempt never meet in one checkpoint. A process
that takes the place of a dead one goes on: it keeps the folder and the parts of the same save.

The module does not import torch, so that a process without it can write.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.format import (
    LARGEST_RECORD,
    PENDING,
    BrokenCheckpointError,
    CheckpointName,
    json_bytes,
    manifest_bytes,
    part_name,
    read_json,
)
from ddp_trainer.checkpoint.store.base import Entry
from ddp_trainer.checkpoint.store.base import Part as Piece
from ddp_trainer.checkpoint.store.directory import DirectoryStore

Claim = Mapping[str, Any]
"""Identity of a save: the claim of its attempt (`checkpoint.fence`), and `save`, a random text."""
_MARK = "save.json"
_BLOCK_BYTES = 512
"""Bytes of a block in the status of a file, on any volume."""


def begin(
    run_directory: Path, name: CheckpointName, claim: Claim, may_begin: Callable[[], None]
) -> None:
    """Create the folder of a checkpoint, unless the same save has begun it.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        claim: Identity of the save.
        may_begin: Function that is called before the folder of another save is deleted. It raises
            an error if this attempt does not own the directory.

    Raises:
        OSError: If the volume fails, or the name exists.
    """
    if has_begun(run_directory, name, claim):
        return
    may_begin()
    abandon(run_directory, name)
    store = DirectoryStore(run_directory)
    store.create(str(name))
    with store.joined(str(name)) as pending:
        pending.put(_MARK, [json_bytes(dict(claim))])


def has_begun(run_directory: Path, name: CheckpointName, claim: Claim) -> bool:
    """Return whether a save has begun its checkpoint.

    Raises:
        OSError: If the volume fails.
    """
    return bool(_read(run_directory / (str(name) + PENDING) / _MARK) == dict(claim))


def is_committed(run_directory: Path, name: CheckpointName) -> bool:
    """Return whether the checkpoint has its final name."""
    return os.path.lexists(run_directory / str(name))


def write_part(
    run_directory: Path,
    name: CheckpointName,
    part: tuple[int, int],
    claim: Claim,
    files: Mapping[str, Iterable[Piece]],
) -> None:
    """Write one part of a checkpoint, and flush it, unless it is there already.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        part: Number of this part, from 1, and number of parts.
        claim: Identity of the save.
        files: Content of each file, by the name of the whole file.

    Raises:
        OSError: If the volume fails, or the save has not begun.
    """
    if has_part(run_directory, name, part[0], claim):
        return
    with DirectoryStore(run_directory).joined(str(name)) as pending:
        entries = {}
        for file, content in files.items():
            own = part_name(file, *part)
            (pending.folder / own).unlink(missing_ok=True)  # A process that died may have left it.
            entries[own] = pending.put(own, content)
        (pending.folder / _receipt(part[0])).unlink(missing_ok=True)
        receipt = {"claim": dict(claim), "files": entries}
        pending.put(_receipt(part[0]), [json_bytes(receipt)])


def has_part(run_directory: Path, name: CheckpointName, number: int, claim: Claim) -> bool:
    """Return whether a part of a save is written.

    Raises:
        OSError: If the volume fails.
    """
    receipt = _read(run_directory / (str(name) + PENDING) / _receipt(number))
    return isinstance(receipt, dict) and receipt.get("claim") == dict(claim)


def held_bytes(
    run_directory: Path, name: CheckpointName, files: Collection[str] | None = None
) -> int:
    """Return the bytes that files of a pending checkpoint use on the volume, without holes.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        files: Names of the files that count. None for all files.

    Raises:
        OSError: If the volume fails. A checkpoint that is not begun uses no bytes.
    """
    try:
        with os.scandir(run_directory / (str(name) + PENDING)) as entries:
            return _BLOCK_BYTES * sum(
                entry.stat(follow_symlinks=False).st_blocks
                for entry in entries
                if files is None or entry.name in files
            )
    except FileNotFoundError:
        return 0


def finish(
    run_directory: Path,
    name: CheckpointName,
    parts: int,
    claim: Claim,
    documents: Mapping[str, Any],
    *,
    may_commit: Callable[[], None],
) -> None:
    """Commit a checkpoint whose parts are all written. Only one process of a run may call this.

    Args:
        run_directory: The run's directory.
        name: Step and attempt.
        parts: Number of parts.
        claim: Identity of the save.
        documents: The JSON documents, by file.
        may_commit: Function that is called right before the rename. It raises an error if this
            attempt no longer owns the directory.

    Raises:
        InputError: If the checkpoint has too many files, or a document is too large.
        OSError: If the volume fails, or a part is missing.
    """
    with DirectoryStore(run_directory).joined(str(name)) as pending:
        files = _receipts(pending.folder, parts, claim)
        for file, document in documents.items():
            (pending.folder / file).unlink(missing_ok=True)
            files[file] = pending.put(file, [json_bytes(document)])
        manifest = manifest_bytes(name, files)
        pending.commit(manifest, may_commit, without=[_MARK, *map(_receipt, range(1, parts + 1))])


def abandon(run_directory: Path, name: CheckpointName) -> None:
    """Delete a checkpoint that is not committed, as far as the volume permits."""
    with contextlib.suppress(OSError):
        DirectoryStore(run_directory).delete(str(name) + PENDING)


def _receipt(number: int) -> str:
    return f"part-{number:05d}.json"


def _receipts(folder: Path, parts: int, claim: Claim) -> dict[str, Entry]:
    """Return the manifest entries of all parts, after a check of their sizes.

    Raises:
        OSError: If the volume fails, or if a part is missing or is that of another save.
    """
    entries: dict[str, Entry] = {}
    for number in range(1, parts + 1):
        receipt = _read(folder / _receipt(number))
        if receipt is None:
            raise OSError(f"part {number} of {parts} is missing")
        if receipt["claim"] != dict(claim):
            raise OSError(f"part {number} of {parts} is that of another process")
        for file, entry in receipt["files"].items():
            size = (folder / file).lstat().st_size
            if size != entry["bytes"]:
                raise OSError(f"{file} has {size} bytes, not {entry['bytes']}")
        entries |= receipt["files"]
    return entries


def _read(path: Path) -> Any:
    """Return a JSON document, or None if it is missing or damaged."""
    try:
        return read_json(path, LARGEST_RECORD)
    except BrokenCheckpointError:
        return None
