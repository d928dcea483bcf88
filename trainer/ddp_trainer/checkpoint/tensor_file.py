"""Give tensors the form of a safetensors file, one after another, without a copy of all of them.

The library's own writer needs contiguous tensors and copies them all first. This one copies one
tensor at a time, and only if its layout is not row by row. The format: the length of the header
(8 bytes, little-endian), the header (JSON), and the tensors
(https://github.com/huggingface/safetensors). A file may hold parts of tensors
(`checkpoint.parts`).
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.checkpoint.parts import PARTS
from ddp_trainer.checkpoint.store.base import Part
from ddp_trainer.errors import InputError
from ddp_trainer.names import NamedTensors

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""Names of the data types in a header."""
_ALIGNMENT = 8
"""Multiple of bytes at which the tensors begin."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive numbers of a tensor, in the order of its indices, that a rank writes."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    source: Tensor
    """Tensor of this rank that contains the numbers, on any device and in any layout."""
    begin: int = 0
    """Place of the source's first number in the whole tensor."""
    first: int = 0
    """Place of the piece's first number in the source."""
    count: int = -1
    """Number of numbers. -1 for all numbers of the source."""

    @classmethod
    def whole(cls, name: str, tensor: Tensor) -> "Piece":
        """Return the piece that is a whole tensor."""
        return cls(name, tuple(tensor.shape), tensor)

    @property
    def numel(self) -> int:
        """Number of numbers."""
        return self.source.numel() if self.count < 0 else self.count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.source.element_size()

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the whole tensor."""
        return self.numel == math.prod(self.shape)

    def data(self) -> memoryview:
        """Return the numbers as bytes, in host memory. Copy them only if necessary."""
        plain = self.source.detach()
        if self.numel < plain.numel():
            plain = plain.contiguous().reshape(-1)[self.first : self.first + self.numel]
        plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
        data: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
        return data


def tensor_parts(tensors: NamedTensors) -> Iterator[Part]:
    """Yield the content of a file with whole tensors: its header, then each tensor with numbers.

    Args:
        tensors: Tensors by name, on any device and in any layout.

    Raises:
        InputError: If the format does not know a tensor's data type.
    """
    return piece_parts([Piece.whole(name, tensor) for name, tensor in tensors.items()])


def piece_parts(pieces: Iterable[Piece]) -> Iterator[Part]:
    """Yield the content of a file: its header, then the numbers of each piece.

    Args:
        pieces: At most one piece of each tensor.

    Raises:
        InputError: If the format does not know a tensor's data type.
    """
    ordered = _ordered(pieces)
    yield _header(ordered)
    for piece in ordered:
        if piece.numel:
            yield piece.data()


def file_size(tensors: NamedTensors) -> int:
    """Return the size of a file with the tensors in bytes, without copying them."""
    ordered = _ordered(Piece.whole(name, tensor) for name, tensor in tensors.items())
    return len(_header(ordered)) + sum(piece.nbytes for piece in ordered)


def _ordered(pieces: Iterable[Piece]) -> list[Piece]:
    # The largest numbers first, so that each tensor begins at a multiple of its numbers' size.
    return sorted(pieces, key=lambda piece: (-piece.source.element_size(), piece.name))


def _header(ordered: list[Piece]) -> bytes:
    header: dict[str, dict[str, object]] = {}
    parts = {
        piece.name: {"shape": piece.shape, "begin": piece.begin + piece.first}
        for piece in ordered
        if not piece.is_whole
    }
    if parts:
        header["__metadata__"] = {PARTS: json.dumps(parts, separators=(",", ":"))}
    end = 0
    for piece in ordered:
        dtype = _TYPES.get(piece.source.dtype)
        if dtype is None:
            raise InputError(
                f'checkpoint: tensor "{piece.name}" has the type {piece.source.dtype}, which'
                " checkpoints do not support"
            )
        begin, end = end, end + piece.nbytes
        shape = piece.shape if piece.is_whole else (piece.numel,)
        header[piece.name] = {
            "dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
