"""Copy batches to the device, on CUDA one batch ahead of the computation.

On CUDA a side stream copies the next batch from pinned memory while the compute stream works on the
current one. Before a batch is used, the compute stream waits for its copy. The allocator keeps the
memory of each tensor until the compute stream no longer needs it. If a batch contains an object
whose tensors cannot be found, the compute stream copies the batch, because the memory of these
tensors could not be protected.
"""

import copy
import dataclasses
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.observe.wait_clock import WaitClock


def on_device(
    micro_batches: Iterable[MicroBatch], device: torch.device, clock: WaitClock | None = None
) -> Iterator[MicroBatch]:
    """Yield the same micro-batches with their data on `device`.

    On CUDA a side stream copies the next batch while the current one is computed.

    Args:
        micro_batches: Micro-batches in host memory, pinned or not.
        device: Target device.
        clock: Clock that measures the time until each batch is in host memory.
    """
    arriving = clock.timed(micro_batches) if clock else micro_batches
    match device.type:
        case "cuda":
            yield from _one_ahead(arriving, device)
        case "cpu":
            yield from arriving
        case _:
            for micro_batch in arriving:
                yield to_device(micro_batch, device)


def to_device(micro_batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Return the micro-batch with its data on `device`. The copy may still be in progress."""
    return micro_batch._replace(batch=_to(micro_batch.batch, device))


def _one_ahead(micro_batches: Iterable[MicroBatch], device: torch.device) -> Iterator[MicroBatch]:
    side = torch.cuda.Stream(device)
    ahead: tuple[MicroBatch, torch.cuda.Event] | None = None
    for micro_batch in micro_batches:
        # `_arrived` could not protect the memory of tensors that it does not find.
        found = _is_searchable(micro_batch.batch)
        with torch.cuda.stream(side if found else torch.cuda.current_stream(device)):
            copied = (to_device(micro_batch, device), side.record_event())
        if ahead is not None:
            yield _arrived(*ahead, device)
        ahead = copied
    if ahead is not None:
        yield _arrived(*ahead, device)


def _arrived(micro_batch: MicroBatch, event: torch.cuda.Event, device: torch.device) -> MicroBatch:
    """Make the compute stream wait for the copy, and keep the copy's memory while it is used."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for tensor in tensors_in(micro_batch.batch):
        tensor.record_stream(stream)
    return micro_batch


def _to(value: Any, device: torch.device) -> Any:
    """Return a batch on the device, with the same types.

    An object with a method `to`, for example a `BatchEncoding` of transformers, moves itself.
    """
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if callable(getattr(value, "to", None)):
        return _moved_by_itself(value, device)
    if isinstance(value, UserDict):
        moved = copy.copy(value)
        moved.data = {key: _to(item, device) for key, item in value.items()}
        return moved
    if isinstance(value, Mapping):
        return {key: _to(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to(item, device) for item in value)
    if _is_plain_dataclass(value):
        moved = copy.copy(value)
        for field in dataclasses.fields(value):
            # A frozen dataclass refuses plain assignment.
            object.__setattr__(moved, field.name, _to(getattr(value, field.name), device))
        return moved
    return value


def _moved_by_itself(value: Any, device: torch.device) -> Any:
    try:
        return value.to(device, non_blocking=True)
    except TypeError:  # Not every `to` has this argument.
        return value.to(device)


def _is_plain_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_searchable(value: Any) -> bool:
    """Return whether `tensors_in` can find all tensors of a batch."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        return all(map(_is_searchable, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_searchable, value))
    if _is_plain_dataclass(value):
        return all(_is_searchable(getattr(value, f.name)) for f in dataclasses.fields(value))
    return not callable(getattr(value, "to", None))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch, at any depth of nesting."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif _is_plain_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
