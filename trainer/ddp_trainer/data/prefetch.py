"""Move batches to the device, one ahead of the computation on CUDA."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ddp_trainer.data.sampler import Micro
from ddp_trainer.observe.wait_clock import WaitClock


def on_device(
    micros: Iterable[Micro], device: torch.device, clock: WaitClock | None = None
) -> Iterator[Micro]:
    """The same work with its batches on `device`.

    On CUDA one batch is copied ahead, on a stream of its own, while the one before is computed.

    Args:
        micros: Batches in host memory, pinned or not.
        device: Where to.
        clock: Counts the time until batches are in host memory.
    """
    arriving = clock.waited_for(micros) if clock else micros
    match device.type:
        case "cuda":
            yield from _one_ahead(arriving, device)
        case "cpu":
            yield from arriving
        case _:
            for micro in arriving:
                yield to_device(micro, device)


def to_device(micro: Micro, device: torch.device) -> Micro:
    """The same work with its batch on `device`; the copy need not be over when this returns."""
    return micro._replace(batch=_to(micro.batch, device))


def _one_ahead(micros: Iterable[Micro], device: torch.device) -> Iterator[Micro]:
    side = torch.cuda.Stream(device)
    ahead: tuple[Micro, torch.cuda.Event] | None = None
    for micro in micros:
        with torch.cuda.stream(side):
            copied = (to_device(micro, device), side.record_event())
        if ahead is not None:
            yield _arrived(*ahead, device)
        ahead = copied
    if ahead is not None:
        yield _arrived(*ahead, device)


def _arrived(micro: Micro, event: torch.cuda.Event, device: torch.device) -> Micro:
    """Makes the computing stream wait for the copy, and keeps the memory until it is done."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for tensor in tensors_in(micro.batch):
        tensor.record_stream(stream)
    return micro


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _to(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_to(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to(item, device) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a batch, however it is nested."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
