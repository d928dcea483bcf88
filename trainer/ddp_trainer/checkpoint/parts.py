"""Find the tensors of a checkpoint in its files, whose tensors may be divided over several files.

A part of a tensor is a tensor of one dimension in a file of its own. It holds consecutive numbers
of the whole tensor, in the order of indices. The header's metadata describe the parts in the file.
Their value `parts` is a text with JSON such as

    {"layers.0.weight": {"shape": [64, 32], "begin": 1024}}

`shape` is that of the whole tensor, and `begin` the place of the part's first number in it. The
parts of a tensor must cover it without gaps. A tensor without an entry is whole.

The module does not import torch, so that `ddp-trainer inspect` can use it.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_trainer.checkpoint.format import (
    LARGEST_MANIFEST,
    MANIFEST,
    BrokenCheckpointError,
    read_json,
    whole_name,
)
from ddp_trainer.checkpoint.header import Header, HeaderError, TensorHeader, read_header

PARTS = "parts"
"""Key of the metadata that describe the parts of tensors in a file, as JSON."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive numbers of a tensor in a file."""

    path: Path
    position: int
    """Place of the first byte in the file."""
    begin: int
    """Place of the first number in the whole tensor."""
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Description of a whole tensor in a checkpoint, and the places of its numbers."""

    name: str
    dtype: str
    """Type by its name in torch, for example `float32`."""
    shape: tuple[int, ...]
    spans: list[Span]
    """Parts of the tensor, in order. They cover it."""

    def document(self) -> list[Any]:
        """Return name, shape and type as JSON, as `checkpoint.stream` sends them."""
        return [self.name, list(self.shape), self.dtype]


def files_in(folder: Path) -> list[str]:
    """Return the names of the files of a checkpoint, by its manifest.

    Raises:
        BrokenCheckpointError: If the manifest is missing or damaged.
        OSError: If the volume fails.
    """
    manifest = read_json(folder / MANIFEST, LARGEST_MANIFEST)
    try:
        return sorted(manifest["files"])
    except (KeyError, TypeError) as error:
        raise BrokenCheckpointError(f"{MANIFEST} is damaged") from error


def stored_tensors(folder: Path, file: str, files: Iterable[str]) -> list[StoredTensor]:
    """Return the tensors of one kind.

    Args:
        folder: The checkpoint.
        file: Name of the whole file of this kind, for example `format.MODEL`.
        files: Names of all files of the checkpoint.

    Raises:
        BrokenCheckpointError: If a file cannot be decoded, or a tensor lacks a part.
        OSError: If the volume fails.
    """
    found: dict[str, StoredTensor] = {}
    for name in files:
        if whole_name(name) == file:
            try:
                _add(found, folder / name, read_header(folder / name))
            except FileNotFoundError as error:
                raise BrokenCheckpointError(f"{name} is missing") from error
            except HeaderError as error:
                raise BrokenCheckpointError(f"{name} cannot be decoded ({error})") from error
    for tensor in found.values():
        tensor.spans.sort(key=lambda span: (span.begin, span.count))
        place = 0
        for span in tensor.spans:
            if span.begin != place:
                break
            place += span.count
        else:
            if place == math.prod(tensor.shape):
                continue
        raise BrokenCheckpointError(f'the parts of "{tensor.name:.80}" in {file} do not fit')
    return list(found.values())


def _add(found: dict[str, StoredTensor], path: Path, header: Header) -> None:
    """Add the tensors and parts of tensors in a file."""
    parts = _parts_in(header)
    for entry in header.tensors:
        shape, begin = parts.get(entry.name, (entry.shape, 0))
        tensor = found.setdefault(entry.name, StoredTensor(entry.name, entry.dtype, shape, []))
        if (tensor.shape, tensor.dtype) != (shape, entry.dtype):
            raise HeaderError(f'"{entry.name:.80}" has another shape or type in another file')
        tensor.spans.append(_span(path, header, entry, begin))


def _span(path: Path, header: Header, entry: TensorHeader, begin: int) -> Span:
    return Span(path, header.size + entry.begin, begin, math.prod(entry.shape))


def _parts_in(header: Header) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and place of each part in a file, by the name of its tensor."""
    try:
        document = json.loads(header.metadata.get(PARTS, "{}"))
        parts = {name: (tuple(each["shape"]), each["begin"]) for name, each in document.items()}
        numbers = [number for shape, begin in parts.values() for number in (*shape, begin)]
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise HeaderError("its description of parts is damaged") from error
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise HeaderError("its description of parts is damaged")
    return parts
