"""From portions of indices to batches on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ddp_trainer.config import DataConfig
from ddp_trainer.data.sampler import Portion
from ddp_trainer.numerics.seeds import seed_all
from ddp_trainer.task import HasCollate, Indexed, Task


class Micro(NamedTuple):
    """What one rank computes in one forward pass."""

    batch: Any
    weight: float
    update_samples: int
    last: bool


@dataclass(frozen=True, slots=True)
class Fetcher(Dataset[Micro]):
    """Prepares the batch of a portion; runs in the rank or in its worker processes."""

    data: Indexed
    collate: Callable[[Any], Any]

    def __getitem__(self, portion: Portion) -> Micro:
        """The batch, drawn under the portion's own seed, wherever and whenever it is drawn."""
        seed_all(portion.seed)
        many = getattr(self.data, "__getitems__", None)
        samples = many(portion.indices) if many else [self.data[i] for i in portion.indices]
        batch = self.collate(samples)
        return Micro(batch, portion.weight, portion.update_samples, portion.last)


def fetcher(task: Task, data: Indexed) -> Fetcher:
    """Prepares batches of `data` with the task's own way of joining samples, if it has one."""
    return Fetcher(data, task.collate if isinstance(task, HasCollate) else default_collate)


def make_loader(
    task: Task, data: Indexed, portions: Iterable[Portion], config: DataConfig, device: torch.device
) -> DataLoader[Micro]:
    """A loader that yields one `Micro` per portion, still in host memory.

    Worker processes start from a fork server: a process that has opened a process group or CUDA
    cannot be forked safely.
    """
    workers = config.workers
    return DataLoader(
        fetcher(task, data),
        sampler=portions,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=config.prefetch if workers else None,
        persistent_workers=workers > 0,
        multiprocessing_context="forkserver" if workers else None,
        pin_memory=device.type == "cuda",
    )


def on_device(micros: Iterable[Micro], device: torch.device) -> Iterator[Micro]:
    """The same work with its batches on `device`."""
    for micro in micros:
        yield to_device(micro, device)


def to_device(micro: Micro, device: torch.device) -> Micro:
    """The same work with its batch on `device`; the copy need not be over when this returns."""
    return micro._replace(batch=_to(micro.batch, device))


def by_update(micros: Iterable[Micro]) -> Iterator[Iterator[Micro]]:
    """Groups forward passes by update. Each group must be used up before the next is asked for."""
    stream = iter(micros)

    def rest(micro: Micro) -> Iterator[Micro]:
        yield micro
        while not micro.last:
            micro = next(stream)
            yield micro

    for first in stream:
        yield rest(first)


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
