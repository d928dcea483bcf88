"""Workloads of the measured loops. Their data sets record when a loop fetches a batch.

Every loop fetches one batch per step. The times between fetches are therefore the step times,
measured in the same way for every system.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from pydantic import BaseModel
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from ddp_trainer.config import Device, OptimizerConfig, Precision, RunConfig
from ddp_trainer.config.settings import check, resolve
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import HasCollate, Indexed, RunEnv, Weighted, load_build
from ddp_trainer.tasks import gpt, miniresnet

AGREE_SECONDS = 5.0
"""Seconds between two exchanges of the product's ranks: the product's default."""
TURN = 5
"""Steps per turn of a loop. The first one is not counted, because other loops have replaced its
code and data in the caches."""
REPORT_EVERY = 50
"""Steps between two reads of the loss, in every loop."""


@dataclass
class StepTimer:
    """Timer that records the seconds between fetches and calls functions before chosen fetches."""

    device: torch.device
    callbacks: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Functions to call right before a fetch, by the step's index."""
    pause: Callable[[], None] | None = None
    """Function to call before the first fetch of each turn. Its time is not counted."""
    _fetches: int = 0
    _since: Any = None
    _spans: list[tuple[Any, Any]] = field(default_factory=list)

    def record_fetch(self) -> None:
        """Record that a batch is fetched."""
        if callback := self.callbacks.get(self._fetches):
            callback()
        now = self._mark()
        if self._since is not None:
            self._spans.append((self._since, now))
        self._since = now
        if self.pause is not None and self._fetches % TURN == 0:
            self.pause()
            self._since = None
        self._fetches += 1

    def steps(self) -> list[float]:
        """Return the seconds of each counted step except the last, on a GPU from CUDA events."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            return [begin.elapsed_time(end) / 1000 for begin, end in self._spans]
        return [end - begin for begin, end in self._spans]

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class TimedDataset(Dataset[Any]):
    """Data set of a given length that repeats its data and times each fetch."""

    def __init__(self, data: Indexed, samples: int) -> None:
        self.data = data
        self.samples = samples
        self.timer: StepTimer | None = None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.data[index % len(self.data)]

    def __getitems__(self, indices: list[int]) -> Any:
        if self.timer:
            self.timer.record_fetch()
        inside = [index % len(self.data) for index in indices]
        many = getattr(self.data, "__getitems__", None)
        return many(inside) if many else [self.data[index] for index in inside]


class TimedTask:
    """Task whose data set is timed, without evaluation."""

    def __init__(self, task: Any, samples: int) -> None:
        self.model = task.model
        self.train_data = TimedDataset(task.train_data, samples)
        self.eval_data = None
        self.collate = task.collate if isinstance(task, HasCollate) else default_collate
        self._task = task

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        """Return the loss of the wrapped task."""
        weighted: Weighted = self._task.loss(model, batch)
        return weighted


class DigitsSettings(miniresnet.MiniResNetConfig):
    """Settings of the bundled MiniResNet task, and the number of samples."""

    samples: int


class GptSettings(gpt.GptConfig):
    """Settings of the bundled GPT task, and the number of samples."""

    samples: int


def digits(cfg: DigitsSettings, env: RunEnv) -> TimedTask:
    """Return the bundled MiniResNet task with timed data."""
    return TimedTask(miniresnet.build(cfg, env), cfg.samples)


def characters(cfg: GptSettings, env: RunEnv) -> TimedTask:
    """Return the bundled GPT task with timed data."""
    return TimedTask(gpt.build(cfg, env), cfg.samples)


@dataclass(frozen=True)
class Workload:
    """One workload with its settings, which are the same for every system."""

    name: str
    task: str
    """Import path of a function that builds a `TimedTask`."""
    settings: dict[str, Any]
    local_batch: int
    optimizer: dict[str, Any]
    precision: Precision = "fp32"
    parallel: dict[str, Any] = field(default_factory=dict)
    """Settings under `parallel` in the configuration of the product's loop."""
    report_every: int = REPORT_EVERY
    """Steps between two reports by the product's loop."""
    minimal_limit: float | None = None
    """Maximum ratio of the product's median step to the hand-written loop's. None where an update
    is so short that a ratio says nothing about training."""
    systems: tuple[str, ...] = ()
    """Names of the measured loops; all of them if empty."""
    warm_up: int = 20
    """Untimed steps at the start of a block."""
    timed: int = 100
    """Timed steps of a block, during which the loss is read twice."""
    shares: int = 1
    """Number of loops that take turns. The product's intervals in seconds are multiplied by it, so
    that the number of steps between two of its events stays the same."""

    def global_batch(self, ranks: Ranks) -> int:
        """Return the samples per update."""
        return self.local_batch * ranks.world_size

    def run_config(self, ranks: Ranks, device: torch.device, steps: int, seed: int) -> RunConfig:
        """Return the configuration of the product's loop for this workload and one epoch."""
        batch = self.global_batch(ranks)
        settings = self.settings | {"samples": steps * batch}
        return resolve(
            {
                "epochs": 1,
                "global_batch": batch,
                "precision": self.precision,
                "device": cast("Device", device.type),
                "seed": seed,
                "optimizer": self.optimizer,
                "schedule": {"name": "constant", "warmup_steps": 0},
                "data": {"shuffle": False, "workers": 0},
                "log": {"every_steps": self.report_every},
                "parallel": {"agree_seconds": AGREE_SECONDS * self.shares} | self.parallel,
                "task": settings,
            }
        )


@dataclass(frozen=True)
class Setting:
    """Ranks, device, number of steps and seed of one run of a loop."""

    ranks: Ranks
    device: torch.device
    steps: int
    seed: int


def build(work: Workload, at: Setting) -> TimedTask:
    """Build the task as the product's loop does, so that all loops start from the same weights."""
    function, model = load_build(work.task)
    config = work.run_config(at.ranks, at.device, at.steps, at.seed)
    settings: BaseModel = check(model, config.task)
    ranks = at.ranks
    env = RunEnv(
        ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size, at.device, at.seed
    )
    seed_all(derive_seed(at.seed, "build"))
    return cast("TimedTask", function(settings, env))


def optimizer_config(work: Workload) -> OptimizerConfig:
    """Return the configuration of the optimizer that all loops use."""
    return check(OptimizerConfig, work.optimizer)


def to_device(batch: Any, device: torch.device) -> Any:
    """Copy a tensor or a tuple of tensors to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    return tuple(to_device(part, device) for part in batch)


def sharded_loader(task: TimedTask, work: Workload, at: Setting) -> DataLoader[Any]:
    """Return a loader of this rank's batches without shuffling, as in torch's tutorials."""
    sampler: DistributedSampler[Any] = DistributedSampler(
        task.train_data, at.ranks.world_size, at.ranks.rank, shuffle=False
    )
    return DataLoader(
        task.train_data,
        batch_size=work.local_batch,
        sampler=sampler,
        collate_fn=task.collate,
        pin_memory=at.device.type == "cuda",
    )
