"""From portions to batches: which data a task has, and who prepares them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ddp_trainer.config import DataConfig, RunConfig
from ddp_trainer.data.budget import Budget
from ddp_trainer.data.sampler import GlobalSampler, Micro, Portion, Taker, evaluation_portions
from ddp_trainer.data.stream import StreamSampler, StreamWork, evaluation_stream
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import seed_all
from ddp_trainer.task import HasCollate, Indexed, Task, is_indexed

Sampler = GlobalSampler | StreamSampler


@dataclass(frozen=True, slots=True)
class Fetcher(Dataset[Micro]):
    """Prepares the batch of a portion; runs in the rank or in its worker processes."""

    data: Indexed
    collate: Callable[[Any], Any]

    def __getitem__(self, portion: Portion[int]) -> Micro:
        """The batch, drawn under the portion's own seed, wherever and whenever it is drawn."""
        seed_all(portion.seed)
        return Micro.of(portion, self.collate(fetch(self.data, portion.items)))


@dataclass(frozen=True, slots=True)
class Here:
    """A loader in this process: one `Micro` per portion, without what torch's does beside that."""

    work: Fetcher
    portions: Iterable[Portion[int]]

    def __iter__(self) -> Iterator[Micro]:
        return map(self.work.__getitem__, self.portions)


def make_sampler(task: Task, config: RunConfig) -> Sampler:
    """How the task's training data are walked through.

    Raises:
        InputError: If they have no length and no number of updates is stated.
    """
    data = task.train_data
    if is_indexed(data):
        shuffle = config.data.shuffle
        return GlobalSampler(len(data), config.global_batch, config.seed, shuffle=shuffle)
    if config.max_steps is None:
        raise InputError('config: "max_steps" must be stated, because train_data has no length')
    if config.epochs is not None:
        raise InputError('config: "epochs" has no meaning, because train_data has no length')
    return StreamSampler(config.global_batch, config.seed)


@dataclass(frozen=True, slots=True)
class Loading:
    """What all loaders of a rank have in common."""

    task: Task
    config: DataConfig
    budget: Budget
    device: torch.device

    def training(self, sampler: Sampler, taker: Taker, start: int, updates: int) -> Iterable[Micro]:
        """This rank's forward passes from a position on, in host memory.

        Args:
            sampler: Of the training data.
            taker: This rank.
            start: Global samples consumed so far.
            updates: Number of updates to make.
        """
        data = self.task.train_data
        if isinstance(sampler, GlobalSampler):
            return self._indexed(cast("Indexed", data), sampler.portions(start, updates, taker))
        return self._stream(
            partial(sampler.portions, cast("Iterable[Any]", data), start, updates, taker)
        )

    def evaluation(self, taker: Taker) -> Iterable[Micro] | None:
        """This rank's forward passes of one pass over the evaluation data, if there are any."""
        data = self.task.eval_data
        if data is None:
            return None
        taker = replace(taker, micro=self.config.eval_batch or taker.micro)
        if is_indexed(data):
            return self._indexed(data, evaluation_portions(len(data), taker))
        return self._stream(partial(evaluation_stream, cast("Iterable[Any]", data), taker))

    def first(self, sampler: Sampler, taker: Taker, start: int) -> Micro:
        """The first forward pass from a position on, prepared in this process."""
        alone = replace(self, budget=replace(self.budget, workers=0))
        micro: Micro = next(iter(alone.training(sampler, taker, start, 1)))
        return micro

    def _indexed(self, data: Indexed, portions: Iterable[Portion[int]]) -> Iterable[Micro]:
        work = Fetcher(data, self._collate)
        if self.budget.workers or self._pinned:
            return self._loader(work, sampler=portions)
        return Here(work, portions)

    def _stream(self, portions: Callable[[], Iterable[Portion[Any]]]) -> Iterable[Micro]:
        return self._loader(StreamWork(portions, self._collate))

    @property
    def _pinned(self) -> bool:
        return self.device.type == "cuda" and self.config.pin_memory

    @property
    def _collate(self) -> Callable[[Any], Any]:
        collate = collate_of(self.task)
        bound = getattr(collate, "__self__", None) is self.task
        return collate_of(_without_model(self.task)) if bound else collate

    def _loader(
        self, work: Dataset[Micro], sampler: Iterable[Portion[int]] | None = None
    ) -> DataLoader[Micro]:
        """A loader that yields one `Micro` per portion.

        Worker processes start from a fork server: a process that has opened a process group or CUDA
        cannot be forked safely.
        """
        workers = self.budget.workers
        return DataLoader(
            work,
            sampler=sampler,
            batch_size=None,
            num_workers=workers,
            collate_fn=_as_it_is,
            prefetch_factor=self.config.prefetch if workers else None,
            persistent_workers=workers > 0 and self.config.persistent_workers,
            multiprocessing_context="forkserver" if workers else None,
            pin_memory=self._pinned,
        )


def _as_it_is(micro: Any) -> Any:
    """The batch is made already; torch's default looks into all of it at every step."""
    return micro


def _without_model(task: Task) -> Task:
    """A task to be sent to worker processes: its model would take a copy, or open the device."""
    twin = copy.copy(task)
    if not isinstance(task, torch.nn.Module):
        object.__setattr__(twin, "model", None)  # even where the task is frozen
    return twin


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


def fetch(data: Indexed, indices: Sequence[int]) -> Any:
    """Samples as `collate` takes them: a list, or what the data's `__getitems__` returns."""
    many = getattr(data, "__getitems__", None)
    return many(list(indices)) if many else [data[index] for index in indices]


def collate_of(task: Task) -> Callable[[Any], Any]:
    """What joins samples to a batch: the task's own, or torch's."""
    return task.collate if isinstance(task, HasCollate) else default_collate
