"""Small deterministic tasks for tests. They can fail at a given point."""

import copy
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.task import Data, RunEnv, Update, Weighted


class ProbeConfig(BaseModel):
    model_config = ConfigDict(strict=True)

    samples: int = 50
    eval_samples: int = 11
    dropout: float = 0.0
    batch_norm: bool = False
    tied: bool = False
    unused: bool = False
    """Whether the model has weights without a gradient."""
    own_optimizer: bool = False
    uneven: bool = False
    """Whether samples have different weights, like sequences of tokens."""
    noise: float = 0.0
    """Standard deviation of random noise in each sample."""
    log_dir: str | None = None
    """Folder in which each rank writes the numbers of its training samples."""
    die_rank: int = -1
    die_after: int = -1
    """Number of forward passes in training after which the rank `die_rank` fails."""
    die_how: str = "kill"
    bad_loss: bool = False
    refuse_rank: int = -1
    """Rank that raises an InputError in its third forward pass."""
    bad_sample: str = ""
    """Defect of sample 17 in `build_bad_sample`."""
    nan_sample: int = -1
    """Number of the sample whose loss is NaN."""
    slow: float = 0.0
    """Seconds to read one sample."""
    forward_seconds: float = 0.0
    """Added duration of each forward pass."""
    slow_rank: int = -1
    """Rank whose forward passes take `slow_factor` times as long, after `slow_after` of them."""
    slow_factor: float = 1.3
    slow_after: int = 50


class Points(torch.utils.data.Dataset[tuple[Tensor, ...]]):
    def __init__(self, count: int, seed: int, cfg: ProbeConfig) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 6, generator=generator)
        self.y = (self.x.sum(1) > 0).long() + (self.x[:, 0] > 1).long()
        self.weight = 1.0 + (torch.arange(count) % 4 if cfg.uneven else torch.zeros(count))
        self.noise, self.slow = cfg.noise, cfg.slow

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self.slow)
        x = self.x[index] + self.noise * torch.randn(6)
        return x, self.y[index], self.weight[index], torch.tensor(index)


class Stream(torch.utils.data.IterableDataset[tuple[Tensor, ...]]):
    """The sample points as a stream without a length. Each epoch has another order."""

    def __init__(self, points: Points) -> None:
        self.points, self.epoch = points, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(self.epoch)
        for index in torch.randperm(len(self.points), generator=generator).tolist():
            yield self.points[index]


class Probe(nn.Module):
    def __init__(self, cfg: ProbeConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm: nn.Module = nn.BatchNorm1d(8) if cfg.batch_norm else nn.Identity()
        self.drop = nn.Dropout(cfg.dropout)
        self.middle = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8, bias=False)
        if cfg.tied:
            self.again.weight = self.middle.weight
        self.head = nn.Linear(8, 3)
        if cfg.unused:
            self.spare = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.tanh(self.norm(self.inner(x))))
        scores: Tensor = self.head(torch.tanh(self.again(torch.tanh(self.middle(x)))))
        return scores


class ProbeTask:
    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        self.cfg, self.env = cfg, env
        self.model: nn.Module = Probe(cfg)
        self.train_data: Data = Points(cfg.samples, 1, cfg)
        self.eval_data: Data | None = Points(cfg.eval_samples, 2, cfg) if cfg.eval_samples else None
        self.passes = 0

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        x, y, weight, index = batch
        if model.training:
            self._note(index)
            slow = self.env.rank == self.cfg.slow_rank and self.passes > self.cfg.slow_after
            time.sleep(self.cfg.forward_seconds * (self.cfg.slow_factor if slow else 1.0))
        if self.cfg.refuse_rank == self.env.rank and self.passes > 2:
            raise InputError("label 7 is not one of the 3 classes")
        if self.cfg.bad_loss:
            return cast("Weighted", x.mean())
        each = nn.functional.cross_entropy(model(x), y, reduction="none")
        if model.training and self.cfg.nan_sample >= 0:
            each = each * torch.where(index == self.cfg.nan_sample, float("nan"), 1.0)
        return Weighted((each * weight).sum(), weight.sum() if self.cfg.uneven else len(x))

    def _note(self, index: Tensor) -> None:
        self.passes += 1
        if self.cfg.log_dir:
            with (Path(self.cfg.log_dir) / f"{self.env.rank}.txt").open("a") as file:
                file.write(" ".join(map(str, index.tolist())) + "\n")
        if self.cfg.die_how == "hang" and self.env.rank > self.cfg.die_rank >= 0:
            time.sleep(1 if self.passes == self.cfg.die_after + 1 else 0)
        if self.env.rank == self.cfg.die_rank and self.passes > self.cfg.die_after >= 0:
            if self.cfg.die_how == "sleep":
                time.sleep(6 if self.passes == self.cfg.die_after + 1 else 0)
                return
            if self.cfg.die_how == "hang":
                time.sleep(600)
            if self.cfg.die_how == "stray":
                torch.distributed.broadcast(torch.zeros(3), src=self.env.rank)
            if self.cfg.die_how == "late":
                raise RuntimeError("the file server timed out")
            if self.cfg.die_how == "raise":
                raise RuntimeError("the probe must fail")
            os.kill(os.getpid(), signal.SIGKILL)


class OwnTask(ProbeTask):
    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Weighted]:
        x, y, _, _ = batch
        hits = (model(x).argmax(1) == y).sum()
        return {"accuracy": Weighted(hits, torch.tensor(len(x)))}

    def optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1, momentum=0.5)

    def collate(self, samples: list[tuple[Tensor, ...]]) -> Any:
        return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))


class TeacherTask(ProbeTask):
    """A task with a teacher that follows the model, state of its own, and a loss in two parts."""

    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.teacher = copy.deepcopy(self.model)
        self.steps: list[int] = []
        self.extra: dict[str, Any] = {"codes": torch.arange(3, dtype=torch.int16)}
        self.extra_parts: dict[str, Tensor] = {}

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        hard = super().loss(model, batch)
        x, _, weight, _ = batch
        with torch.no_grad():
            wanted = self.teacher(x)
        soft = ((model(x) - wanted).square().mean(1) * weight).sum()
        parts = {"hard": hard.sum, "soft": soft, **self.extra_parts}
        return Weighted(hard.sum + 0.5 * soft, hard.count, parts)

    @torch.no_grad()
    def after_update(self, update: Update) -> None:
        self.steps.append(update.step)
        for own, new in zip(self.teacher.parameters(), update.model.parameters(), strict=True):
            own.lerp_(new, 0.25)

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state_dict(), "steps": self.steps, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.teacher.load_state_dict(state["teacher"])
        self.steps, self.extra = state["steps"], state["extra"]


class FullTask(TeacherTask, OwnTask):
    """A task with every optional member."""


def build_full(cfg: ProbeConfig, env: RunEnv) -> FullTask:
    return FullTask(cfg, env)


class HookTask(TeacherTask):
    """A task whose hook computes with the model, reads its weights and changes them."""

    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        self.teacher = copy.deepcopy(self.model)
        self.extra = {"output": torch.zeros(3)}

    @torch.no_grad()
    def after_update(self, update: Update) -> None:
        self.extra["output"] += update.model(torch.ones(6))
        super().after_update(update)
        for weight in update.model.parameters():
            weight.clamp_(-0.25, 0.25)


def build_hook(cfg: ProbeConfig, env: RunEnv) -> HookTask:
    return HookTask(cfg, env)


def build_teacher(cfg: ProbeConfig, env: RunEnv) -> TeacherTask:
    return TeacherTask(cfg, env)


def build_teacher_by_rank(cfg: ProbeConfig, env: RunEnv) -> TeacherTask:
    task = TeacherTask(cfg, env)
    task.extra_parts = {f"of rank {env.rank}": torch.zeros(())}
    return task


def build_unsaveable(cfg: ProbeConfig, env: RunEnv) -> TeacherTask:
    task = TeacherTask(cfg, env)
    task.extra["path"] = Path("/")
    return task


def build(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    return ProbeTask(cfg, env)


def build_own(cfg: ProbeConfig, env: RunEnv) -> OwnTask:
    return OwnTask(cfg, env)


def build_stream(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    task = ProbeTask(cfg, env)
    task.train_data = Stream(Points(cfg.samples, 1, cfg))
    task.eval_data = Stream(Points(cfg.eval_samples, 2, cfg))
    return task


class OddMetricsTask(ProbeTask):
    """A task with other metrics on rank 2."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Weighted]:
        del model
        names = ("f1", "recall") if self.env.rank == 2 else ("f1", "precision")
        return {name: Weighted(batch[0].sum(), len(batch[0])) for name in names}


def build_odd_metrics(cfg: ProbeConfig, env: RunEnv) -> OddMetricsTask:
    return OddMetricsTask(cfg, env)


class DrawingTask(ProbeTask):
    """A task whose loss draws from all three global generators."""

    def __init__(self, cfg: ProbeConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.draws: list[tuple[float, float, float]] = []

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        if model.training:
            numpy = float(np.random.rand())  # noqa: NPY002 - as mixup does
            self.draws.append((random.random(), numpy, float(torch.rand(()))))  # noqa: S311
        return super().loss(model, batch)


def build_drawing(cfg: ProbeConfig, env: RunEnv) -> DrawingTask:
    return DrawingTask(cfg, env)


class PointsWithBadSample(Points):
    """Points with a defect in the sample with index 17."""

    defect = ""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y, *rest = super().__getitem__(index)
        if index == 17:
            match self.defect:
                case "label":
                    y = torch.tensor(7)
                case "shape":
                    x = x[:5]
                case "dtype":
                    x = x.double()
                case "nan":
                    x[3] = float("nan")
                case _:
                    raise FileNotFoundError("no file of that name")
        return x, y, *rest


class TokenConfig(ProbeConfig):
    hf_token: str = ""


def build_with_token(cfg: TokenConfig, env: RunEnv) -> ProbeTask:
    return ProbeTask(cfg, env)


def build_bad_sample(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    task = ProbeTask(cfg, env)
    data = PointsWithBadSample(cfg.samples, 1, cfg)
    data.defect, task.train_data = cfg.bad_sample, data
    return task


def build_by_rank(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    task = ProbeTask(cfg, env)
    task.train_data = Points(cfg.samples - env.rank, 1, cfg)
    return task


def build_absent(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    if env.rank == 1:
        raise InputError('data folder "/data/flowers" does not exist')
    return ProbeTask(cfg, env)


def build_broken(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    if env.rank == 1:
        raise RuntimeError("the probe cannot be built")
    return ProbeTask(cfg, env)


def build_waiting(cfg: ProbeConfig, env: RunEnv) -> ProbeTask:
    """Create a file in `log_dir` when the build begins, then wait for a signal."""
    (Path(cfg.log_dir or ".") / f"{env.rank}.waiting").touch()
    time.sleep(600)
    return ProbeTask(cfg, env)


def untyped(cfg, env):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, ARG001
    return None


def not_a_task(cfg: ProbeConfig, env: RunEnv) -> object:  # noqa: ARG001
    return object()
