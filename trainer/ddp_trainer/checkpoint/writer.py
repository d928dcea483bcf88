"""Writing a checkpoint so that it is there as a whole or not at all."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_REST,
    PENDING,
    STATE,
    Name,
    sync,
    write_json,
    write_manifest,
)
from ddp_trainer.checkpoint.snapshot import Snapshot, Tensors


def commit(
    run_directory: Path, name: Name, snapshot: Snapshot, may_commit: Callable[[], None]
) -> Path:
    """Writes one checkpoint under its final name. One process of the run only.

    Files are written and flushed in a pending directory, the manifest last; then the directory is
    renamed, and the rename flushed. A crash at any point leaves all earlier checkpoints and, at
    most, a pending directory.

    Args:
        run_directory: The run's own directory; must exist.
        name: Step and attempt.
        snapshot: In host memory.
        may_commit: Called right before the rename; raises if the directory is no longer ours.

    Returns:
        The committed directory.

    Raises:
        OSError: If the volume refuses, or the name is taken; nothing is left behind then.
    """
    final = run_directory / str(name)
    pending = run_directory / (str(name) + PENDING)
    if final.exists():
        raise FileExistsError(f"{final} exists already")
    pending.mkdir()
    try:
        for file, tensors in _files(snapshot).items():
            _write(tensors, pending / file)
        write_json(pending / OPTIMIZER_REST, snapshot.optimizer_rest)
        write_json(pending / STATE, snapshot.state)
        write_manifest(pending, name)
        sync(pending)
        may_commit()
        pending.rename(final)
        sync(run_directory)
    except BaseException:
        shutil.rmtree(pending, ignore_errors=True)
        raise
    return final


def _write(tensors: Tensors, path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error  # It wraps what the volume said.
    sync(path)


def _files(snapshot: Snapshot) -> dict[str, Tensors]:
    optional = {AVERAGE: snapshot.average, COMPRESSION: snapshot.compression}
    always = {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}
    return always | {file: tensors for file, tensors in optional.items() if tensors}


def replace_json(path: Path, document: object) -> None:
    """Writes a JSON document in place of an older one, at once, whoever else does so meanwhile."""
    pending = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PENDING}")
    try:
        write_json(pending, document)
        pending.replace(path)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    sync(path.parent)
