"""Send the tensors of a file, which one rank reads, to every rank, a few at a time.

So each rank needs memory for only a small part of a checkpoint at once.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ddp_trainer.checkpoint.parts import StoredTensor
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.checkpoint.volume import os_error
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
    ) -> None:
        """Prepare the stream without reading tensors.

        Args:
            source: Function that reads the tensors with the given names. Only the rank that reads
                calls it.
            described: Name, shape and type of each tensor on that rank, on every rank.
            device: The run's device, for the broadcast.
            read: Function with which the rank makes each read.
            src: The rank that reads.
        """
        self._source = source
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
        for chunk in _chunks(self._described):
            tensors: Tensors = {}

            def read_own(
                names: list[str] = [each.name for each in chunk],  # noqa: B006 - read only
                into: Tensors = tensors,
            ) -> None:
                into.update(self._read(lambda: self._source(names)))

            on_rank(self._src, read_own, self._device)
            for each in chunk:
                yield each.name, self._sent(tensors.pop(each.name, None), each)

    def _sent(self, own: Tensor | None, described: Described) -> Tensor:
        tensor = described.empty() if own is None else own
        # As bytes, because gloo does not know all types of numbers.
        data = tensor.contiguous().reshape(-1).view(torch.uint8).to(self._device)
        return broadcast(data, self._src).cpu().view(described.dtype).reshape(described.shape)


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
    dtype = getattr(torch, stored.dtype)
    flat = torch.empty(torch.Size(stored.shape).numel(), dtype=dtype)
    into: memoryview = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    for span in stored.spans:
        begin, end = (place * dtype.itemsize for place in (span.begin, span.begin + span.count))
        read_into(span.path, span.position, into[begin:end])
    return flat.reshape(stored.shape)


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
