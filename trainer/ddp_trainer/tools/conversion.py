"""Convert weights between safetensors, torch.save, torch's DCP and checkpoints of this trainer.

Tied weights are written once where the format permits it. A safetensors file names their other
names in its metadata, as safetensors' own `save_model` does, so a later conversion restores them.
"""

import os
import secrets
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ddp_trainer.checkpoint.format import (
    AVERAGE,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_REST,
    STATE,
    CheckpointName,
    names_in,
    sync,
    write_json,
    write_manifest,
)
from ddp_trainer.checkpoint.header import TYPES
from ddp_trainer.checkpoint.named_weights import Weights, WeightsError
from ddp_trainer.checkpoint.reading import kept
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.checkpoint.volume import Sleep, os_error, retried, volume_error
from ddp_trainer.checkpoint.weights import has_file, open_kind, open_weights
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import SavedConfig, SavedState
from ddp_trainer.tools.export.source import find_checkpoint
from ddp_wire.files import remove

T = TypeVar("T")

FORMATS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}
"""Formats by the suffix of a path."""
_STORED = frozenset(TYPES.values())


def convert(
    source: Path,
    destination: Path,
    target: str,
    *,
    key: str | None = None,
    averaged: bool = False,
    sleep: Sleep = time.sleep,
) -> int:
    """Convert weights, and compare the result with the source.

    Args:
        source: File or folder of any known format, or a run's directory.
        destination: File or folder to create.
        target: `safetensors`, `torch`, `dcp` or `checkpoint`.
        key: Entry of a nested state that holds the weights.
        averaged: Whether to convert the moving average of a checkpoint instead of its weights.
        sleep: Function that waits between two tries to read.

    Returns:
        Number of tensors, tied ones counted once.

    Raises:
        InputError: If the source holds no weights, or the destination exists.
        VolumeError: If the volume fails.
    """

    def trying(act: Callable[[], T]) -> T:
        try:
            return retried(act, sleep)
        except WeightsError as error:
            raise InputError(f"convert: {error}") from error
        except (OSError, SafetensorError) as error:
            failed = error if isinstance(error, OSError) else os_error(error)
            raise volume_error(f"convert: {failed}", failed) from error

    if os.path.lexists(destination):
        raise InputError(f"convert: {destination} exists; name a new file or folder")
    if not destination.parent.is_dir():
        raise InputError(f"convert: the folder {destination.parent} does not exist")
    weights, tensors = _read(source, key, averaged=averaged, trying=trying, sleep=sleep)
    unknown = [n for n, t in tensors.items() if str(t.dtype).removeprefix("torch.") not in _STORED]
    if unknown and target in {"safetensors", "checkpoint"}:
        name = unknown[0]
        raise InputError(f'convert: safetensors has no type {tensors[name].dtype} (of "{name}")')
    pending = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.tmp")
    try:
        trying(lambda: _write(pending, target, tensors, weights.aliases))
        trying(lambda: _compare(pending, tensors))
        trying(lambda: pending.rename(destination))
    finally:
        remove(pending, pending.parent)
    return len(tensors)


def _read(
    source: Path,
    key: str | None,
    *,
    averaged: bool,
    trying: Callable[[Callable[[], tuple[Weights, Tensors]]], tuple[Weights, Tensors]],
    sleep: Sleep,
) -> tuple[Weights, Tensors]:
    """Return the opened source and its tensors."""
    marks = (MODEL, MANIFEST)
    is_checkpoint = source.is_dir() and bool(
        names_in(source) or any((source / mark).is_file() for mark in marks)
    )
    if is_checkpoint:
        source = find_checkpoint(source, sleep, command="convert")
    if averaged and not (is_checkpoint and has_file(source, AVERAGE)):
        raise InputError(f"convert: {source} has no moving average")

    def read() -> tuple[Weights, Tensors]:
        weights = open_weights(source, key)
        tensors = weights.read([name for name, *_ in weights.described])
        if averaged:
            average = open_kind(source, AVERAGE)
            tensors |= average.read([name for name, *_ in average.described])
        return weights, tensors

    def read_kept() -> tuple[Weights, Tensors]:
        with kept(source):
            return read()

    return trying(read_kept)


def _write(path: Path, target: str, tensors: Tensors, aliases: dict[str, str]) -> None:
    """Write the tensors to a new file or folder. The parameters are those of `convert`."""
    whole = tensors | {name: tensors[first] for name, first in aliases.items()}
    if target == "safetensors":
        save_file(tensors, path, metadata={"format": "pt"} | aliases)
    elif target == "torch":
        torch.save(whole, path)
    elif target == "dcp":
        from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - slow

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # It says that there is no process group.
            save(dict(whole), checkpoint_id=path, no_dist=True)
    else:
        _write_checkpoint(path, tensors)
        return
    for file in [path] if path.is_file() else path.iterdir():
        sync(file)


def _write_checkpoint(path: Path, tensors: Tensors) -> None:
    """Write a checkpoint that holds weights only, at update 0. A run cannot resume from it."""
    path.mkdir()
    save_file(tensors, path / MODEL)
    save_file({}, path / OPTIMIZER)
    write_json(path / OPTIMIZER_REST, {"state": {}, "groups": []})
    state = SavedState(
        step=0,
        samples=0,
        seconds=0.0,
        data_size=None,
        world_size=1,
        scaler={},
        config=SavedConfig(seed=0),
        versions={"torch": str(torch.__version__)},
    )
    write_json(path / STATE, state.document())
    for file in path.iterdir():
        sync(file)
    write_manifest(path, CheckpointName(0, 0))
    sync(path)


def _compare(path: Path, tensors: Tensors) -> None:
    """Read the written tensors again, and compare them bit by bit.

    Raises:
        OSError: If one differs.
    """
    written = open_weights(path)
    for name, tensor in tensors.items():
        (found,) = written.read([name]).values()
        if not same_bits(found, tensor):
            raise OSError(f'{path} has other bits for "{name}" than were written')


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape, type and bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return bool(first.equal(second))
