"""Finding the newest whole checkpoint, and bringing it to every rank."""

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
    Name,
    check_whole,
    names_in,
    read_json,
)
from ddp_trainer.checkpoint.snapshot import Snapshot, Tensors
from ddp_trainer.ranks.collectives import broadcast, broadcast_json, is_joined


@dataclass(frozen=True, slots=True)
class Choice:
    """What a start resumes from."""

    name: Name | None
    """The newest whole checkpoint; nothing when there is none."""
    skipped: list[str]
    """One sentence per newer checkpoint that is not whole."""


def choose(run_directory: Path) -> Choice:
    """Checks checkpoints from the newest on until one is whole, and sets broken ones aside.

    A broken one is renamed and not deleted: it may be wanted for a look, and its name becomes free.
    """
    skipped = []
    for name in reversed([n for n in names_in(run_directory) if not n.suffix]):
        path = run_directory / str(name)
        try:
            check_whole(path)
        except (BrokenCheckpointError, OSError) as error:
            skipped.append(f"{name} is not whole: {error}")
            _set_aside(path)
        else:
            return Choice(name, skipped)
    return Choice(None, skipped)


def receive(path: Path | None, device: torch.device) -> Snapshot:
    """Reads a checkpoint on rank 0 and gives it to every rank. Every rank must call it.

    Only one process reads the volume; the others need not even have it mounted.

    Args:
        path: The checkpoint, on rank 0.
        device: The run's device, where the tensors travel.

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
    """The tensors of a file, in host memory; none if there is no such file."""
    if not path.exists():
        return {}
    # Copies: a tensor that still maps its file would fault once a network volume has dropped it.
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def broadcast_tensors(tensors: Tensors, device: torch.device) -> Tensors:
    """Rank 0's tensors on every rank, in host memory. Every rank must call it."""
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


def _set_aside(path: Path) -> None:
    try:
        path.rename(path.with_name(path.name + BROKEN))
    except OSError:
        # Another attempt's directory of that name, or a volume that refuses: then it stays.
        return
