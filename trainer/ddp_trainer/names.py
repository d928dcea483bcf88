"""Names of parameters and buffers in checkpoints."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_COMPILED = "_orig_mod."
"""Part that torch.compile adds to the names inside a module that a task compiles itself."""


class NamedTensors(Protocol):
    """Tensors by name: a dictionary, or a stream from a file (`checkpoint.stream`)."""

    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def items(self) -> Iterable[tuple[str, Tensor]]:
        """Return names and tensors. Every rank must iterate over all tensors of a stream."""
        ...


@dataclass(frozen=True, slots=True)
class TensorParts:
    """A whole tensor that arrives in parts."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: Iterator[tuple[int, Tensor]]
    """Place of the first number of each part, and its numbers in the order of indices, in one
    dimension."""


def parts_of(saved: NamedTensors) -> Iterator[TensorParts]:
    """Yield each tensor in parts: those of a stream in small ones, all others whole.

    Every rank must iterate over all parts of all tensors.
    """
    parts: Callable[[], Iterator[TensorParts]] | None = getattr(saved, "parts", None)
    if parts is not None:
        yield from parts()
        return
    for name, tensor in saved.items():
        whole = iter([(0, tensor.reshape(-1))])
        yield TensorParts(name, tuple(tensor.shape), tensor.dtype, whole)


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer as if no part of the model were compiled.

    So a run can resume although its task compiles other parts of its model than before.
    """
    return name.replace(_COMPILED, "")
