"""Read the weights in a folder of torch.distributed.checkpoint (DCP).

torch reads the index of such a folder with pickle, which can run code, and joins the file names in
it to any path. So this module reads the index with the few classes that torch writes into it, and
opens only regular files directly in the folder. Each part of a tensor is a file of torch.save
within a larger file.
"""

import io
import os
import pickle
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ddp_trainer.checkpoint.format import FILE_NAME
from ddp_trainer.checkpoint.named_weights import (
    METADATA,
    Weights,
    WeightsError,
    check_tensor,
    chosen_entry,
)
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_wire.files import PlantedFileError, open_to_read, read_file

_LARGEST_INDEX = 1 << 28
_DCP = "torch.distributed.checkpoint"
_CLASSES = {
    f"{_DCP}.metadata": frozenset({
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    }),
    f"{_DCP}.filesystem": frozenset({"_StorageInfo"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch": frozenset({"Size"}),
    "collections": frozenset({"OrderedDict"}),
    "pathlib": frozenset({"PosixPath"}),
    "pathlib._local": frozenset({"PosixPath"}),
}  # fmt: skip
"""Classes and functions in an index that torch writes, by module. None of them runs other code."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in the index."""

    name: str
    info: Any


def open_dcp(path: Path, key: str | None) -> Weights:
    """Open the weights in a DCP folder.

    Args:
        path: The folder.
        key: As for `open_weights`.

    Raises:
        WeightsError: If the folder is damaged, would run code, or leads out of itself.
        OSError: If the volume fails.
    """
    index = _read_index(path / METADATA)
    try:
        entries = chosen_entry(_nested(index), key, path, _Entry)
        places = {(i.fqn, tuple(i.offset or ())): info for i, info in index.storage_data.items()}
        size = sum(file.lstat().st_size for file in path.iterdir())
        described = [_described(path, name, entry, size) for name, entry in entries.items()]
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        if isinstance(error, WeightsError):
            raise
        raise _damaged(path) from error

    def read(names: list[str]) -> Tensors:
        return {name: _read_tensor(path, entries[name], places) for name in names}

    return Weights(path, described, read)


class _ForbiddenError(pickle.UnpicklingError):
    """Error for an object that no index contains."""


class _Unpickler(pickle.Unpickler):
    """Unpickler that knows only the classes of an index."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of an index.

        Raises:
            _ForbiddenError: For any other class or function.
        """
        if name in _CLASSES.get(module, ()):
            return getattr(import_module(module), name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise _ForbiddenError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse objects outside the pickle.

        Raises:
            _ForbiddenError: Always.
        """
        raise _ForbiddenError(f"persistent id {pid!s:.40}")


def _read_index(path: Path) -> Any:
    try:
        data = read_file(path, _LARGEST_INDEX)
    except PlantedFileError as error:
        raise WeightsError(f"{path} is no regular file") from error
    except ValueError as error:
        raise WeightsError(f"{path} is too large for an index") from error
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except _ForbiddenError as error:
        raise WeightsError(
            f"{path} holds objects that torch does not write there, which could run code"
            f" ({error!s:.80})"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise _damaged(path.parent) from error


def _nested(index: Any) -> dict[str, Any]:
    """Return the state that was saved, with an `_Entry` for each tensor and None for other values.

    torch stores a nested state under joined names, and the path to each value beside them.
    """
    state: dict[str, Any] = {}
    for joined, info in index.state_dict_metadata.items():
        way = (index.planner_data or {}).get(joined, (joined,))
        *folders, last = way
        place = state
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = _Entry(joined, info) if hasattr(info, "chunks") else None
    return state


def _described(path: Path, name: str, entry: _Entry, size: int) -> list[Any]:
    """Return name, shape and type of a tensor, after a check of its parts."""
    shape, dtype = list(map(int, entry.info.size)), entry.info.properties.dtype
    if min(shape, default=0) < 0 or not isinstance(dtype, torch.dtype):
        raise _damaged(path)
    check_tensor(path, name, shape, dtype, size)
    covered = 0
    for chunk in entry.info.chunks:
        ends = [b + n for b, n in zip(chunk.offsets, chunk.sizes, strict=True)]
        fits = all(0 <= b <= e <= s for b, e, s in zip(chunk.offsets, ends, shape, strict=True))
        if not fits:
            raise _damaged(path)
        covered += torch.Size(chunk.sizes).numel()
    if covered != torch.Size(shape).numel():
        raise WeightsError(f'{path} lacks a part of "{name:.80}"')
    return [name, shape, str(dtype).removeprefix("torch.")]


def _read_tensor(path: Path, entry: _Entry, places: dict[tuple[Any, ...], Any]) -> Tensor:
    """Read all parts of a tensor."""
    whole = torch.empty(tuple(entry.info.size), dtype=entry.info.properties.dtype)
    for chunk in entry.info.chunks:
        place = places.get((entry.name, tuple(chunk.offsets)))
        if place is None:
            raise WeightsError(f'{path} lacks a part of "{entry.name:.80}"')
        part = _read_part(path, place)
        if part.shape != torch.Size(chunk.sizes) or part.dtype != whole.dtype:
            raise _damaged(path)
        target = whole
        for dimension, (begin, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            target = target.narrow(dimension, begin, size)
        target.copy_(part)
    return whole


def _read_part(path: Path, place: Any) -> Tensor:
    """Read one part of a tensor from its file."""
    name = place.relative_path
    if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
        raise WeightsError(f"{path} names {name!r:.80}, which is no file in the folder")
    if getattr(place, "transform_descriptors", None):
        raise WeightsError(f"{path} is compressed, which this version cannot read")
    try:
        descriptor = open_to_read(path / name)
    except PlantedFileError as error:
        raise WeightsError(f"{path / name} is no regular file") from error
    with os.fdopen(descriptor, "rb") as file:
        begin, length = place.offset, place.length
        if not 0 <= begin <= begin + length <= os.fstat(file.fileno()).st_size:
            raise _damaged(path)
        file.seek(begin)
        data = io.BytesIO(file.read(length))
    try:
        part = torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise anything
        raise WeightsError(f"{path / name} cannot be read by torch.load") from error
    if not isinstance(part, Tensor):
        raise _damaged(path)
    return part.detach()


def _damaged(path: Path) -> WeightsError:
    return WeightsError(f"{path} is a damaged DCP folder")
