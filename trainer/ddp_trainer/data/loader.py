"""Load micro-batches from portions, in this process or in worker processes.

A sampler (`data.sampler`) yields portions: the samples of each micro-batch of a rank, and the seed
for their preparation. The loader only reads the portions in their order. So neither the number nor
the speed of workers changes a batch, and a run that resumes with a different number of workers gets
the same data. A worker returns an error as an `Unreadable`, which names the sample, and the rank
raises the error.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ddp_trainer.config import DataConfig, RunConfig
from ddp_trainer.data.budget import CpuBudget
from ddp_trainer.data.order import ORDER_VERSION
from ddp_trainer.data.sampler import (
    GlobalSampler,
    MicroBatch,
    Portion,
    RankSlice,
    evaluation_portions,
)
from ddp_trainer.data.stream import MicroBatchStream, StreamSampler, evaluation_stream
from ddp_trainer.data.unreadable import Readable, Unreadable
from ddp_trainer.data.worker import end_with_rank
from ddp_trainer.errors import InputError, ReportedError
from ddp_trainer.saved_state import SavedState
from ddp_trainer.seeds import seed_all
from ddp_trainer.task import HasCollate, Indexed, Task, is_indexed

Sampler = GlobalSampler | StreamSampler

_MAX_LISTED = 8
"""Maximum number of sample indices in a message."""


@dataclass(frozen=True, slots=True)
class MicroBatchDataset(Dataset[MicroBatch | Unreadable]):
    """Data set that returns the micro-batch of each portion, in the rank or in a worker process."""

    data: Indexed
    collate: Callable[[Any], Any]

    def __getitem__(self, portion: Portion[int]) -> MicroBatch | Unreadable:
        """Return the micro-batch of a portion. The portion's seed makes it reproducible."""
        seed_all(portion.seed)
        progress = FetchProgress()
        try:
            return MicroBatch.of(portion, self.collate(fetch(self.data, portion.items, progress)))
        except ReportedError:
            raise
        except Exception as error:  # noqa: BLE001 - the rank raises it, with the sample
            return Unreadable.of(error, progress.described(portion.items))


@dataclass(frozen=True, slots=True)
class InProcessLoader:
    """Loader that prepares each micro-batch in this process, without torch's DataLoader."""

    dataset: MicroBatchDataset
    portions: Iterable[Portion[int]]

    def __iter__(self) -> Iterator[MicroBatch | Unreadable]:
        return map(self.dataset.__getitem__, self.portions)


def make_sampler(task: Task, config: RunConfig, saved: SavedState | None = None) -> Sampler:
    """Create the sampler for the task's training data.

    Args:
        task: Task that provides the data.
        config: The resolved config.
        saved: State of the checkpoint from which the run resumes, if any.

    Raises:
        InputError: If the settings do not fit data without a length, or the size of the data.
    """
    data = task.train_data
    if is_indexed(data):
        return GlobalSampler(
            len(data),
            config.global_batch,
            config.seed,
            shuffle=config.data.shuffle,
            drop_last=config.data.drop_last,
            order_version=saved.order_version if saved else ORDER_VERSION,
        )
    if config.data.drop_last:
        raise InputError(
            'config: "data.drop_last" must not be set, because train_data has no length'
        )
    if config.max_steps is None:
        raise InputError('config: "max_steps" must be stated, because train_data has no length')
    if config.epochs is not None:
        raise InputError('config: "epochs" must not be stated, because train_data has no length')
    return StreamSampler(config.global_batch, config.seed)


@dataclass(frozen=True, slots=True)
class LoaderFactory:
    """Factory of a rank's loaders, with the settings that all of them share.

    Create it before the state of a checkpoint is restored. Worker processes then see the task as
    `build` returned it, in a resumed run as in an uninterrupted one.
    """

    task: Task
    config: DataConfig
    budget: CpuBudget
    device: torch.device
    _shipped_collate: Callable[[Any], Any] = field(init=False, repr=False)
    """The task's `collate`, bound to a copy of the task if it is a method."""

    def __post_init__(self) -> None:
        """Copy the task, in its present state, for worker processes."""
        collate = collate_of(self.task)
        if getattr(collate, "__self__", None) is self.task:
            collate = collate_of(_without_model(self.task))
        object.__setattr__(self, "_shipped_collate", collate)

    def training(
        self, sampler: Sampler, rank_slice: RankSlice, start: int, updates: int
    ) -> Iterable[MicroBatch]:
        """Create a loader of this rank's training data, starting at a position.

        Args:
            sampler: Sampler of the training data.
            rank_slice: Slice of this rank.
            start: Number of samples that all ranks have consumed so far.
            updates: Number of updates to make.
        """
        data = self.task.train_data
        if isinstance(sampler, GlobalSampler):
            portions = sampler.portions(start, updates, rank_slice)
            return Readable(self._indexed(cast("Indexed", data), portions))
        return Readable(
            self._stream(
                partial(sampler.portions, cast("Iterable[Any]", data), start, updates, rank_slice)
            )
        )

    def evaluation(self, rank_slice: RankSlice) -> Iterable[MicroBatch] | None:
        """Create a loader of this rank's evaluation data, or return None if the task has none."""
        data = self.task.eval_data
        if data is None:
            return None
        micro_batch = self.config.eval_batch or rank_slice.micro_batch
        rank_slice = replace(rank_slice, micro_batch=micro_batch)
        if is_indexed(data):
            loader = self._indexed(data, evaluation_portions(len(data), rank_slice))
        else:
            read = partial(evaluation_stream, cast("Iterable[Any]", data), rank_slice)
            loader = self._stream(read)
        return Readable(loader, "evaluation: ")

    def first(self, sampler: Sampler, rank_slice: RankSlice, start: int) -> MicroBatch:
        """Return the first micro-batch at a position, prepared in this process."""
        # On a copy, because the run prepares this micro-batch again: collate may change its task.
        task = copy.copy(self.task)
        in_process = replace(self, task=task, budget=replace(self.budget, workers=0))
        first: MicroBatch = next(iter(in_process.training(sampler, rank_slice, start, 1)))
        return first

    def shipped(self) -> tuple[Any, ...]:
        """Return the objects that each worker process receives besides the training data."""
        return self.task.eval_data, self._shipped_collate

    def _indexed(
        self, data: Indexed, portions: Iterable[Portion[int]]
    ) -> Iterable[MicroBatch | Unreadable]:
        dataset = MicroBatchDataset(data, self._collate)
        if self.budget.workers or self._pinned:
            return self._loader(dataset, sampler=portions)
        return InProcessLoader(dataset, portions)

    def _stream(
        self, portions: Callable[[], Iterable[Portion[Any]]]
    ) -> Iterable[MicroBatch | Unreadable]:
        return self._loader(MicroBatchStream(portions, self._collate))

    @property
    def _pinned(self) -> bool:
        return self.device.type == "cuda" and self.config.pin_memory

    @property
    def _collate(self) -> Callable[[Any], Any]:
        # On CUDA one batch is prepared ahead, before the update in front of it is complete, so only
        # the copy gives a resumed run the bits of an uninterrupted one.
        ahead = self.budget.workers > 0 or self.device.type == "cuda"
        return self._shipped_collate if ahead else collate_of(self.task)

    def _loader(
        self,
        dataset: Dataset[MicroBatch | Unreadable],
        sampler: Iterable[Portion[int]] | None = None,
    ) -> DataLoader[MicroBatch | Unreadable]:
        """Create a torch loader that yields one micro-batch per portion.

        Worker processes start from a fork server, because a process that has opened a process group
        or CUDA cannot be forked safely.
        """
        workers = self.budget.workers
        return DataLoader(
            dataset,
            sampler=sampler,
            batch_size=None,
            num_workers=workers,
            collate_fn=_identity,
            worker_init_fn=end_with_rank,
            prefetch_factor=self.config.prefetch if workers else None,
            persistent_workers=workers > 0 and self.config.persistent_workers,
            multiprocessing_context="forkserver" if workers else None,
            pin_memory=self._pinned,
        )


def _identity(micro_batch: Any) -> Any:
    """Return the micro-batch unchanged. torch's default would traverse it at each step."""
    return micro_batch


def _without_model(task: Task) -> Task:
    """Return a copy of the task without its model, to send to worker processes.

    Otherwise each worker would need memory for the model, or would open the device.
    """
    twin = copy.copy(task)
    if not isinstance(task, torch.nn.Module):
        object.__setattr__(twin, "model", None)  # A frozen dataclass refuses plain assignment.
    return twin


def by_update(micro_batches: Iterable[MicroBatch]) -> Iterator[Iterator[MicroBatch]]:
    """Group micro-batches by update. The caller must exhaust each group before the next one."""
    stream = iter(micro_batches)

    def group(micro_batch: MicroBatch) -> Iterator[MicroBatch]:
        yield micro_batch
        while not micro_batch.last:
            micro_batch = next(stream)
            yield micro_batch

    for first in stream:
        yield group(first)


@dataclass(slots=True)
class FetchProgress:
    """Progress of the preparation of a micro-batch, for error messages."""

    index: int | None = None
    """Index of the sample that is being read; None if all samples are read or collated at once."""

    def described(self, indices: Sequence[int]) -> str:
        """Return the samples that are being prepared, as text for a message."""
        if self.index is not None:
            return f"sample {self.index}"
        listed = ", ".join(map(str, indices[:_MAX_LISTED]))
        more = len(indices) - _MAX_LISTED
        return f"samples {listed}" + (f" and {more} more" if more > 0 else "")


def fetch(data: Indexed, indices: Sequence[int], progress: FetchProgress | None = None) -> Any:
    """Return samples in the form that `collate` takes: a list, or `__getitems__`'s result.

    torch's own loader calls `__getitems__` in the same way.

    Args:
        data: The data set.
        indices: Indices of the samples.
        progress: Object that receives the index of the sample that is being read.
    """
    many = getattr(data, "__getitems__", None)
    if many:
        return many(list(indices))
    progress = progress or FetchProgress()
    samples = []
    for progress.index in indices:
        samples.append(data[progress.index])
    progress.index = None
    return samples


def collate_of(task: Task) -> Callable[[Any], Any]:
    """Return the function that joins samples to a batch: the task's own or torch's default."""
    return task.collate if isinstance(task, HasCollate) else default_collate
