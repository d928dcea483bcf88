"""Send the tensors of a file, which one rank reads, to every rank, a few at a time.

So each rank needs memory for only a small part of a checkpoint at once.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ddp_trainer.checkpoint.parts import StoredTensor
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.checkpoint.volume import os_error
from ddp_trainer.names import TensorParts
from ddp_trainer.ranks.collectives import broadcast, on_rank
from ddp_wire.files import open_to_read

CHUNK = 64 << 20
"""Maximum number of bytes that a rank reads at once, unless a single tensor is larger."""

Act = Callable[[], Tensors]
Read = Callable[[Act], Tensors]
"""Function that calls its argument, retries it after errors of the volume, and finally raises a
`ReportedError`."""


@dataclass(frozen=True, slots=True)
class Described:
    """Name, shape and data type of a tensor in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def parse(cls, document: list[Any]) -> "Described":
        """Return the description that `header` wrote as JSON."""
        name, shape, dtype = document
        return cls(name, tuple(shape), getattr(torch, dtype))

    def empty(self) -> Tensor:
        """Return an uninitialised tensor in host memory."""
        return torch.empty(self.shape, dtype=self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class TensorStream:
    """The tensors of a file, which only one rank needs to read.

    Every rank must iterate over `items` at the same time, to the end.
    """

    def __init__(
        self,
        source: Callable[[list[str]], Tensors],
        described: list[list[Any]],
        device: torch.device,
        read: Read,
        src: int = 0,
        *,
        ranges: Callable[[str, int, int], Tensor] | None = None,
    ) -> None:
        """Prepare the stream without reading tensors.

        Args:
            source: Function that reads the tensors with the given names. Only the rank that reads
                calls it.
            described: Name, shape and type of each tensor on that rank, on every rank.
            device: The run's device, for the broadcast.
            read: Function with which the rank makes each read.
            src: The rank that reads.
            ranges: Function that reads some numbers of a tensor, as `read_numbers` does. Without
                it, each tensor is read at once.
        """
        self._source, self._ranges = source, ranges
        self._described = [Described.parse(document) for document in described]
        self._device = device
        self._read = read
        self._src = src

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without communication."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """Return the number of tensors in the file."""
        return len(self._described)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors, by name."""
        return {each.name: each.shape for each in self._described}

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each name with its tensor in host memory, equal on every rank.

        Raises:
            ReportedError: On every rank, if the rank cannot read the file.
        """
        for group in _chunks(self._described):
            tensors = self._received(group)
            for each in group:
                yield each.name, tensors.pop(each.name)

    def parts(self) -> Iterator[TensorParts]:
        """Yield each tensor in parts of at most `CHUNK` bytes, equal on every rank.

        Every rank must iterate over all parts of each tensor.

        Raises:
            ReportedError: On every rank, if the rank cannot read the file.
        """
        for group in _chunks(self._described):
            if self._ranges is not None and group[0].nbytes > CHUNK:
                yield _parts(group[0], self._received_parts(group[0], self._ranges))
                continue
            tensors = self._received(group)
            for each in group:
                yield _parts(each, iter([(0, tensors.pop(each.name).reshape(-1))]))

    def _received(self, group: list[Described]) -> Tensors:
        """Return some tensors on every rank."""
        names = [each.name for each in group]
        tensors = self._read_on_rank(lambda: self._source(names))
        return {each.name: self._sent(tensors.pop(each.name, None), each) for each in group}

    def _received_parts(
        self, whole: Described, ranges: Callable[[str, int, int], Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        count, step = torch.Size(whole.shape).numel(), CHUNK // whole.dtype.itemsize
        for begin in range(0, count, step):
            end = min(begin + step, count)
            part = Described(whole.name, (end - begin,), whole.dtype)
            found = self._read_on_rank(partial(_as_dict, ranges, whole.name, begin, end))
            yield begin, self._sent(found.pop(whole.name, None), part)

    def _read_on_rank(self, act: Act) -> Tensors:
        """Call `act` on the rank that reads. Return an empty dictionary on the others."""
        found: Tensors = {}
        on_rank(self._src, lambda: found.update(self._read(act)), self._device)
        return found

    def _sent(self, own: Tensor | None, described: Described) -> Tensor:
        tensor = described.empty() if own is None else own
        # As bytes, because gloo does not know all types of numbers.
        data = tensor.contiguous().reshape(-1).view(torch.uint8).to(self._device)
        return broadcast(data, self._src).cpu().view(described.dtype).reshape(described.shape)


def _parts(described: Described, parts: Iterator[tuple[int, Tensor]]) -> TensorParts:
    return TensorParts(described.name, described.shape, described.dtype, parts)


def _as_dict(ranges: Callable[[str, int, int], Tensor], name: str, begin: int, end: int) -> Tensors:
    return {name: ranges(name, begin, end)}


def read_some(path: Path, names: list[str]) -> Tensors:
    """Read the tensors with the given names from a safetensors file.

    Raises:
        SafetensorError: If the file is damaged.
        OSError: If the volume fails.
    """
    with _opened(path) as file:
        # Copy, because a tensor that maps its file would fault when a network volume drops it.
        return {name: file.get_tensor(name).clone() for name in names}


def read_stored(stored: StoredTensor) -> Tensor:
    """Read a tensor of a checkpoint, which may be divided over several files.

    Raises:
        OSError: If the volume fails, or a file has become shorter.
    """
    return read_numbers(stored, 0, torch.Size(stored.shape).numel()).reshape(stored.shape)


def read_numbers(stored: StoredTensor, first: int, last: int) -> Tensor:
    """Read some numbers of a tensor, in the order of its indices.

    Args:
        stored: The tensor.
        first: Place of the first number.
        last: Place after the last number.

    Raises:
        OSError: If the volume fails, or a file has become shorter.
    """
    dtype = getattr(torch, stored.dtype)
    flat = torch.empty(last - first, dtype=dtype)
    into: memoryview = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    for span in stored.spans:
        begin, end = max(first, span.begin), min(last, span.begin + span.count)
        if begin < end:
            position = span.position + (begin - span.begin) * dtype.itemsize
            place = slice((begin - first) * dtype.itemsize, (end - first) * dtype.itemsize)
            read_into(span.path, position, into[place])
    return flat


def read_into(path: Path, position: int, into: memoryview) -> None:
    """Fill a buffer from a place in a file.

    Raises:
        OSError: If the volume fails, or the file ends too early.
    """
    with os.fdopen(open_to_read(path), "rb", buffering=0) as file:
        file.seek(position)
        while into:
            count = file.readinto(into)
            if not count:
                raise OSError(errno.EIO, "the file ends too early", str(path))
            into = into[count:]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, RuntimeError) as error:  # torch maps the file, with its own error.
        failed = os_error(error)
        if failed.errno is not None:
            raise failed from error
        raise


def _chunks(described: list[Described]) -> Iterator[list[Described]]:
    """Divide tensors into groups of at most `CHUNK` bytes, or of a single larger tensor."""
    chunk: list[Described] = []
    size = 0
    for each in described:
        if chunk and size + each.nbytes > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += each.nbytes
    if chunk:
        yield chunk
