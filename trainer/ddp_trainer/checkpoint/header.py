"""Read the header of a safetensors file: names, types and places of its tensors, without torch.

The first 8 bytes hold the length of the header, which is JSON. The numbers of the tensors follow,
without gaps. A header that lies about a size could make a reader allocate any amount of memory, so
every size must agree with the size of the file.
"""

import json
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

LARGEST_HEADER = 100_000_000
"""Maximum length of a header, in bytes. The library safetensors has the same limit."""
_LENGTH = 8
_METADATA = "__metadata__"
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""Names of the types in torch, by their names in the file."""
_BYTES = {
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "BF16": 2, "BOOL": 1,
}  # fmt: skip
"""Bytes of a number, for types whose name does not state its bits."""


class HeaderError(ValueError):
    """Error for a file that is not a safetensors file, or whose header is damaged."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Description of one tensor in a file."""

    name: str
    dtype: str
    """Type by its name in torch, for example `float32`."""
    shape: tuple[int, ...]
    begin: int
    """Position of its first byte after the header."""
    end: int

    def document(self) -> list[Any]:
        """Return name, shape and type as JSON, as `checkpoint.stream` sends them."""
        return [self.name, list(self.shape), self.dtype]


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a file."""

    tensors: list[TensorHeader]
    """Tensors in the order of their places."""
    metadata: dict[str, str]
    size: int
    """Bytes of the file before the first tensor."""


def read_header(path: Path) -> Header:
    """Return the header of a safetensors file.

    Raises:
        HeaderError: If the file is not a safetensors file, or its header does not fit the file.
        OSError: If the volume fails.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(LARGEST_HEADER, size - _LENGTH):
            raise HeaderError(f"its header would have {length} bytes, but the file has {size}")
        text = file.read(length)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeaderError("its header is not JSON") from error
    if not isinstance(document, dict):
        raise HeaderError("its header is not a JSON object")
    metadata = document.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise HeaderError("its metadata are not texts")
    tensors = sorted(
        (_parse(name, entry) for name, entry in document.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    places = [0, *(place for each in tensors for place in (each.begin, each.end))]
    places.append(size - _LENGTH - length)
    for before, after in list(pairwise(places))[::2]:
        if before != after:
            raise HeaderError("its tensors do not fill the file")
    return Header(tensors, metadata, _LENGTH + length)


def _parse(name: str, entry: Any) -> TensorHeader:
    """Return the description of one tensor."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (KeyError, TypeError, ValueError) as error:
        raise HeaderError(f'its description of "{name:.80}" is damaged') from error
    if kind not in TYPES:
        raise HeaderError(f'"{name:.80}" has the unknown type {str(kind)[:40]}')
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise HeaderError(f'its description of "{name:.80}" is damaged')
    if end - begin != math.prod(shape) * _bytes(kind):
        raise HeaderError(f'"{name:.80}" has {end - begin} bytes, which do not fit its shape')
    return TensorHeader(name, TYPES[kind], tuple(shape), begin, end)


def _bytes(kind: str) -> int:
    return _BYTES[kind] if kind in _BYTES else int(kind[1:]) // 8
