"""Describe weights of any supported file format, and refuse what is not one."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ddp_trainer.checkpoint.snapshot import Tensors

METADATA = ".metadata"
"""Name of the index of a DCP folder."""
USUAL_KEYS = ("model", "state_dict", "model_state_dict")
"""Entries of a nested state in which programs usually store the weights."""
_SHOWN = 5


class WeightsError(ValueError):
    """Error for a file that holds no weights, or that must not be read."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in a file or folder. Their numbers are not read yet."""

    path: Path
    described: list[list[Any]]
    """Name, shape and type of each tensor. Tied weights appear once."""
    read: Callable[[list[str]], Tensors]
    """Function that reads the tensors with the given names, in host memory."""
    aliases: dict[str, str] = field(default_factory=dict)
    """First name of each tied weight, by its other names."""


def chosen_entry(state: Any, key: str | None, path: Path, kind: type) -> dict[str, Any]:
    """Return the entry of a nested state that holds the weights.

    Args:
        state: The state, or what stands for it.
        key: Name of the entry. None for the state itself, or the only one of `USUAL_KEYS`.
        path: The file, for the message.
        kind: Class of the values that are tensors.

    Raises:
        WeightsError: If no such entry exists, or it holds other values.
    """
    if key is not None:
        if not isinstance(state, Mapping) or key not in state:
            raise WeightsError(f'{path} has no entry "{key:.80}"{_hint(state)}')
        state = state[key]
    if not _are_tensors(state, kind) and key is None and isinstance(state, Mapping):
        usual = [state[name] for name in USUAL_KEYS if _are_tensors(state.get(name), kind)]
        if len(usual) == 1:
            (state,) = usual
    if not _are_tensors(state, kind):
        raise WeightsError(f"{path} does not hold tensors by name{_hint(state)}")
    return dict(state)


def _are_tensors(state: Any, kind: type) -> bool:
    """Return whether a value is a dictionary of tensors by name, with at least one."""
    return (
        isinstance(state, Mapping)
        and bool(state)
        and all(isinstance(k, str) and isinstance(v, kind) for k, v in state.items())
    )


def _hint(state: Any) -> str:
    """Return the names of the entries, as the end of a sentence."""
    if not isinstance(state, Mapping) or not state:
        return ""
    names = ", ".join(f"{name!s:.40}" for name in itertools.islice(state, _SHOWN))
    more = ", …" if len(state) > _SHOWN else ""
    return f"; it has {names}{more}: choose the entry with the weights (convert --key)"


def check_tensor(
    path: Path, name: str, shape: Iterable[int], dtype: torch.dtype, size: int
) -> None:
    """Check that a tensor is not larger than its file, as one with repeated numbers could be.

    Raises:
        WeightsError: If it is.
    """
    needed = math.prod(shape) * dtype.itemsize
    if needed > size:
        raise WeightsError(
            f'"{name:.80}" in {path} would need {needed} bytes, but the file has {size}'
        )
