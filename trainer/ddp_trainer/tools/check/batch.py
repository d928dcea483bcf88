"""Check that the trainer can move a batch to a device."""

import dataclasses
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ddp_trainer.errors import InputError


def check_batch(batch: Any) -> str | None:
    """Find parts of a batch that would stay in host memory.

    Args:
        batch: A collated batch.

    Returns:
        A sentence about the first such part, or None.

    Raises:
        InputError: If the method `to` of a part fails, or does not return the moved part.
    """
    for path, part in _objects_in(batch, "batch"):
        kind = type(part).__name__
        if callable(getattr(part, "to", None)):
            if _moved(part, path) is None:
                raise InputError(
                    f"task: the method to() of {kind} ({path}) must return the moved object, but"
                    " returns None"
                )
        elif any(isinstance(value, torch.Tensor) for value in vars(part).values()):
            return (
                f"{path} is an object of {kind}, whose tensors stay on the CPU when the model is on"
                " a GPU: use a dictionary, a tuple or a dataclass, or give it a method to(device)"
            )
    return None


def _moved(part: Any, path: str) -> Any:
    try:
        return part.to(torch.device("cpu"))
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"task: the method to() of {type(part).__name__} ({path}) must move it to a"
            f" torch.device: {type(error).__name__}: {error}"
        ) from error


def _objects_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the objects within a batch that are neither tensors nor collections of tensors."""
    if isinstance(value, (Mapping, UserDict)) and not callable(getattr(value, "to", None)):
        for key, item in value.items():
            yield from _objects_in(item, f'{path}["{key}"]')
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _objects_in(item, f"{path}[{number}]")
    elif isinstance(value, (type, torch.Tensor)):
        return
    elif dataclasses.is_dataclass(value) and not callable(getattr(value, "to", None)):
        for part in dataclasses.fields(value):
            yield from _objects_in(getattr(value, part.name), f"{path}.{part.name}")
    elif hasattr(value, "__dict__"):
        yield path, value
