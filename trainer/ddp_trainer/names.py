"""Names of parameters and buffers in checkpoints."""

from collections.abc import Iterable, Iterator
from typing import Protocol

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


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer as if no part of the model were compiled.

    So a run can resume although its task compiles other parts of its model than before.
    """
    return name.replace(_COMPILED, "")
