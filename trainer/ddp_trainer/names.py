"""Names of parameters and buffers in checkpoints."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

_COMPILED = "_orig_mod."
"""Level that torch.compile adds to the names inside a module that a task compiles itself."""


class NamedTensors(Protocol):
    """Tensors by name: a dictionary, or a stream from a file (`checkpoint.stream`)."""

    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def items(self) -> Iterable[tuple[str, Tensor]]:
        """Return names and tensors. For a stream every rank must iterate over all of them."""
        ...


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer as if no part of the model were compiled.

    So a run can resume after its task has begun or ceased to compile a part of its model.
    """
    return name.replace(_COMPILED, "")
