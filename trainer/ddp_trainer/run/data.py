"""Prepare a run's data on one rank: the position, the length and the loaders.

A checkpoint stores the number of consumed samples, and no state of a loader. The order of the
samples is a function of seed and position, so a resumed run creates new loaders that begin at the
saved position. A resumed run therefore needs data of the same size and the same seed.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.config import RunConfig
from ddp_trainer.data.auto_workers import WorkerChoice, choose_workers
from ddp_trainer.data.budget import divide_cpus, spare_cpus
from ddp_trainer.data.loader import LoaderFactory, Sampler, make_sampler
from ddp_trainer.data.sampler import MicroBatch, RankSlice
from ddp_trainer.data.stream import StreamSampler
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.parts import BuiltTask, Group
from ddp_trainer.saved_state import SavedState
from ddp_wire.machine import cpu_count


@dataclass(frozen=True, slots=True)
class Position:
    """Progress of a run, over all attempts."""

    step: int = 0
    """Number of completed updates."""
    samples: int = 0
    """Number of consumed samples, over all ranks, including those that data.drop_last skipped."""
    seconds: float = 0.0
    """Time of training in seconds, including evaluations and checkpoints."""


@dataclass(frozen=True, slots=True)
class RunData:
    """This rank's data, beginning at the start position of the attempt."""

    sampler: Sampler
    rank_slice: RankSlice
    loaders: LoaderFactory
    position: Position
    total_steps: int
    choice: WorkerChoice | None = None
    """Choice of the number of worker processes; None if the config sets the number."""

    def training(self) -> Iterable[MicroBatch]:
        """Create the loader for the remaining updates of the run."""
        updates = self.total_steps - self.position.step
        return self.loaders.training(self.sampler, self.rank_slice, self.position.samples, updates)

    def first(self) -> MicroBatch:
        """Return the first micro-batch of the attempt."""
        return self.loaders.first(self.sampler, self.rank_slice, self.position.samples)


def prepare_data(built: BuiltTask, saved: Checkpoint | None, ranks: Ranks, group: Group) -> RunData:
    """Prepare this rank's data, beginning at the position of the checkpoint.

    Args:
        built: The task and its config.
        saved: The checkpoint to resume from, if any.
        ranks: This process's rank.
        group: The device of this rank, and its share of a batch.

    Raises:
        InputError: If the data or its order differ from those of the checkpoint.
    """
    config = built.config
    sampler = make_sampler(built.task, config, saved.state if saved else None)
    position = _position(saved.state, sampler) if saved else Position()
    total_steps = _total_steps(sampler, position, config)
    rank_slice = RankSlice(ranks.rank, ranks.world_size, group.split.micro_batch)
    requested = config.data.workers
    budget = divide_cpus(
        cpu_count(), ranks.local_world_size, 0 if requested == "auto" else requested
    )
    loaders = LoaderFactory(built.task, config.data, budget, group.device)
    data = RunData(sampler, rank_slice, loaders, position, total_steps)
    left = position.step < total_steps
    if requested == "auto" and group.device.type == "cuda" and left:
        data = _with_chosen_workers(data, ranks)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(data.loaders.budget.threads)
    return data


def _with_chosen_workers(data: RunData, ranks: Ranks) -> RunData:
    """Return the data with a number of workers that fits the preparation time of a batch."""
    spare = spare_cpus(cpu_count(), ranks.local_world_size)
    training, shipped = data.loaders.task.train_data, data.loaders.shipped()
    choice = choose_workers(training, data.first, spare, shipped=shipped)
    budget = divide_cpus(cpu_count(), ranks.local_world_size, choice.workers)
    loaders = replace(data.loaders, budget=budget)
    return replace(data, loaders=loaders, choice=choice)


def _position(saved: SavedState, sampler: Sampler) -> Position:
    """Return the position of a run in its data from a checkpoint.

    Raises:
        InputError: If the position is not valid for this data or this order of samples.
    """
    if saved.data_size != sampler.size:
        raise InputError(
            f"checkpoint: it was written with {saved.data_size} training samples, now there are"
            f" {sampler.size}; a resumed run needs the same number of samples to keep its position"
        )
    if saved.config.seed != sampler.seed:
        raise InputError(
            f"config: seed must stay {saved.config.seed} in a resumed run, because the order"
            f" of the samples depends on it; it is now {sampler.seed}"
        )
    return Position(saved.step, saved.samples, saved.seconds)


def _total_steps(sampler: Sampler, position: Position, config: RunConfig) -> int:
    """Return the number of updates of the whole run, over all attempts."""
    if config.max_steps is not None and config.epochs is None:
        return config.max_steps
    if isinstance(sampler, StreamSampler):
        raise TypeError("a stream has no epochs to count")
    end = sampler.size * (config.epochs or 1)
    left = sampler.updates_between(position.samples, end) if position.samples < end else 0
    total = position.step + left
    return total if config.max_steps is None else min(total, config.max_steps)
