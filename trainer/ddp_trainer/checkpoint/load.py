"""Selection of the newest complete checkpoint, and its distribution to every rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    BROKEN,
    COMPRESSION,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_REST,
    STATE,
    BrokenCheckpointError,
    CheckpointName,
    names_in,
    read_json,
    verify,
)
from ddp_trainer.checkpoint.snapshot import Snapshot, Tensors
from ddp_trainer.ranks.collectives import broadcast, broadcast_json, is_joined


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint that a start resumes from."""

    name: CheckpointName | None
    """The newest complete checkpoint; None if there is none."""
    skipped: list[str]
    """One sentence per newer checkpoint that is damaged."""


def choose(run_directory: Path) -> Choice:
    """Choose the newest complete checkpoint, and rename newer ones that are damaged.

    A broken checkpoint is renamed, not deleted, so that it can be inspected. Its name becomes free.
    """
    skipped = []
    names = [name for name in names_in(run_directory) if not name.suffix]
    for older, name in reversed(list(enumerate(names))):
        path = run_directory / str(name)
        try:
            verify(path)
        except (BrokenCheckpointError, OSError) as error:
            kept = _rename_broken(path)
            then = (
                "trying the next older checkpoint"
                if older
                else "no older checkpoint is left, so training starts from the beginning"
            )
            skipped.append(f"checkpoint {path} is damaged: {error}; {kept}; {then}")
        else:
            return Choice(name, skipped)
    return Choice(None, skipped)


def receive(path: Path | None, device: torch.device) -> Snapshot:
    """Read a checkpoint on rank 0 and broadcast it to every rank. Every rank must call it.

    Only rank 0 needs access to the volume.

    Args:
        path: The checkpoint, on rank 0.
        device: The run's device, for the broadcast of the tensors.

    Returns:
        The snapshot, in host memory.
    """
    read = _read(path) if path else Snapshot({}, {}, {})
    if not is_joined():
        return read
    rest, state = broadcast_json([read.optimizer_rest, read.state], device)
    return Snapshot(
        model=broadcast_tensors(read.model, device),
        optimizer=broadcast_tensors(read.optimizer, device),
        optimizer_rest=rest,
        state=state,
        average=broadcast_tensors(read.average, device),
        compression=broadcast_tensors(read.compression, device),
    )


def _read(path: Path) -> Snapshot:
    return Snapshot(
        model=read_tensors(path / MODEL),
        optimizer=read_tensors(path / OPTIMIZER),
        optimizer_rest=read_json(path / OPTIMIZER_REST),
        state=read_json(path / STATE),
        average=read_tensors(path / AVERAGE),
        compression=read_tensors(path / COMPRESSION),
    )


def read_tensors(path: Path) -> Tensors:
    """Read the tensors of a file into host memory. A missing file has none."""
    if not path.exists():
        return {}
    # Copy, because a tensor that maps its file would fault when a network volume drops the file.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def broadcast_tensors(tensors: Tensors, device: torch.device) -> Tensors:
    """Return rank 0's tensors on every rank, in host memory. Every rank must call it."""
    if not is_joined():
        return tensors
    described: Any = [
        [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        for name, tensor in tensors.items()
    ]
    received: dict[str, Tensor] = {}
    for name, shape, dtype in broadcast_json(described, device):
        tensor = tensors.get(name)
        if tensor is None:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        received[name] = broadcast(tensor.to(device)).cpu()
    return received


def _rename_broken(path: Path) -> str:
    """Rename a broken checkpoint, and return a clause that says what happened to it."""
    broken = path.name + BROKEN
    try:
        path.rename(path.with_name(broken))
    except OSError as error:
        # For example, an earlier attempt left a directory of the new name.
        return f"it stays there, because renaming it to {broken} failed ({error.strerror})"
    return f"it was renamed to {broken}"
