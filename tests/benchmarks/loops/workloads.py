"""What the measured loops train: tasks whose data note when a batch is fetched.

Every loop fetches one batch per step, so the times of the fetches are the times of the steps, taken
in the same way whichever system owns the loop.
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
from ddp_trainer.seeds import derive, seed_all
from ddp_trainer.task import HasCollate, Indexed, RunEnv, Weighted, load_build
from ddp_trainer.tasks import gpt, miniresnet

AGREE_SECONDS = 5.0
"""About how often the product's ranks meet; its default."""
TURN = 5
"""Steps that a loop makes before the next one's turn. The first of them is not counted: it finds
its code and data gone from the caches, which a loop in use has for itself."""
REPORT_EVERY = 50
"""Steps between two readings of the loss, in every loop that reads it."""


@dataclass
class Watch:
    """Notes the time from each fetch to the next, and acts at chosen ones."""

    device: torch.device
    acts: dict[int, Callable[[], None]] = field(default_factory=dict)
    """What to do right before the fetch of a step, by the step's index."""
    pause: Callable[[], None] | None = None
    """Called before the first fetch of each turn; the time that it takes is nobody's."""
    _fetches: int = 0
    _since: Any = None
    _spans: list[tuple[Any, Any]] = field(default_factory=list)

    def tick(self) -> None:
        """A batch is fetched."""
        if act := self.acts.get(self._fetches):
            act()
        now = self._mark()
        if self._since is not None:
            self._spans.append((self._since, now))
        self._since = now
        if self.pause is not None and self._fetches % TURN == 0:
            self.pause()
            self._since = None
        self._fetches += 1

    def steps(self) -> list[float]:
        """Seconds of each step but the last and those not counted; on a GPU by its own clock."""
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


class Watched(Dataset[Any]):
    """Data of a given length, gone through again and again, fetched under a watch."""

    def __init__(self, data: Indexed, samples: int) -> None:
        self.data = data
        self.samples = samples
        self.watch: Watch | None = None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.data[index % len(self.data)]

    def __getitems__(self, indices: list[int]) -> Any:
        if self.watch:
            self.watch.tick()
        inside = [index % len(self.data) for index in indices]
        many = getattr(self.data, "__getitems__", None)
        return many(inside) if many else [self.data[index] for index in inside]


class Measured:
    """A task over watched data, without evaluation."""

    def __init__(self, task: Any, samples: int) -> None:
        self.model = task.model
        self.train_data = Watched(task.train_data, samples)
        self.eval_data = None
        self.collate = task.collate if isinstance(task, HasCollate) else default_collate
        self._task = task

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        """The task's own."""
        weighted: Weighted = self._task.loss(model, batch)
        return weighted


class DigitsSettings(miniresnet.MiniResNetConfig):
    """The bundled task's, and the length of the data."""

    samples: int


class GptSettings(gpt.GptConfig):
    """The bundled task's, and the length of the data."""

    samples: int


def digits(cfg: DigitsSettings, env: RunEnv) -> Measured:
    """The bundled MiniResNet."""
    return Measured(miniresnet.build(cfg, env), cfg.samples)


def characters(cfg: GptSettings, env: RunEnv) -> Measured:
    """The bundled GPT."""
    return Measured(gpt.build(cfg, env), cfg.samples)


@dataclass(frozen=True)
class Workload:
    """One comparison: equal in every system."""

    name: str
    task: str
    """Import path of a function that builds a `Measured`."""
    settings: dict[str, Any]
    local_batch: int
    optimizer: dict[str, Any]
    precision: Precision = "fp32"
    report_every: int = REPORT_EVERY
    """Steps between two reports of the product's loop."""
    shares: int = 1
    """Loops that take turns: what the product does by the clock it does that much more seldom, so
    as to do it as often per step as when it is alone."""

    def global_batch(self, ranks: Ranks) -> int:
        """Samples per update."""
        return self.local_batch * ranks.world_size

    def run_config(self, ranks: Ranks, device: torch.device, steps: int, seed: int) -> RunConfig:
        """The same as a run of the product's loop, of one epoch."""
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
                "data": {"shuffle": False},
                "log": {"every_steps": self.report_every},
                "parallel": {"agree_seconds": AGREE_SECONDS * self.shares},
                "task": settings,
            }
        )


@dataclass(frozen=True)
class Setting:
    """Where and how long a loop runs."""

    ranks: Ranks
    device: torch.device
    steps: int
    seed: int


def build(work: Workload, at: Setting) -> Measured:
    """The task as the product's loop builds it: with the same weights."""
    function, model = load_build(work.task)
    config = work.run_config(at.ranks, at.device, at.steps, at.seed)
    settings: BaseModel = check(model, config.task)
    ranks = at.ranks
    env = RunEnv(
        ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size, at.device, at.seed
    )
    seed_all(derive(at.seed, "build"))
    return cast("Measured", function(settings, env))


def optimizer_config(work: Workload) -> OptimizerConfig:
    """The update rule."""
    return check(OptimizerConfig, work.optimizer)


def to_device(batch: Any, device: torch.device) -> Any:
    """A tensor or a tuple of them, on its way to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    return tuple(to_device(part, device) for part in batch)


def sharded_loader(task: Measured, work: Workload, at: Setting) -> DataLoader[Any]:
    """Batches of this rank, in the data's order: what torch's tutorials do."""
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
