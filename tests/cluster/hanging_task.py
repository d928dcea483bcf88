"""A small task in which one rank hangs in each attempt, or which is slow in harmless ways."""

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.task import RunEnv, Weighted

PASSES = 25
"""Forward passes in training before a rank hangs: enough for a new checkpoint."""


class HangConfig(BaseModel):
    ways: list[str] = []
    """Way in which a rank hangs, for each attempt from the first."""
    ranks: list[int] = []
    """The rank that hangs, for each attempt."""
    slow_seconds: float = 0.0
    """Duration of the first update, of each evaluation and of each checkpoint, in seconds."""
    forward_seconds: float = 0.02
    """Duration of a forward pass, in seconds."""
    jitter_seconds: float = 0.0
    """Longest random delay of a rank in an update, in seconds."""


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Data set whose reads can hang, in the process of a data worker."""

    def __init__(self, hangs: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x, self.hangs, self.reads = torch.randn(320, 6, generator=generator), hangs, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        if self.hangs and self.reads > 2 * PASSES:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()  # A deadlock.
        return self.x[index], (self.x[index].sum() > 0).long()


class Hanging:
    def __init__(self, cfg: HangConfig, env: RunEnv) -> None:
        attempt = int(os.environ.get("DDP_ATTEMPT", "1"))
        planned = attempt <= len(cfg.ways)
        self.chosen = planned and env.rank == cfg.ranks[attempt - 1]
        self.way = cfg.ways[attempt - 1] if planned else ""
        self.passes, self.evaluated, self.device = 0, 0.0, env.device
        torch.manual_seed(0)
        first = nn.Linear(6, 8)
        first.weight.register_hook(self._hook)
        self.model = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))
        self.train_data = Points(self.chosen and self.way == "worker")
        self.eval_data = Points(hangs=False) if cfg.slow_seconds else None
        self.cfg, self.random = cfg, random.Random(env.rank)  # noqa: S311 (a test delay)
        if cfg.slow_seconds and env.rank == 0:
            _slow_down_checkpoints(cfg.slow_seconds)
        self.group: Any = dist.new_group() if self.way == "collective" else None

    def _hook(self, gradient: Tensor) -> Tensor:
        if self._now("hook"):
            time.sleep(3600)
        return gradient

    def _now(self, way: str) -> bool:
        return self.chosen and self.way == way and self.passes > PASSES

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        if not model.training:
            self._evaluate_slowly()
            return self._of(model, batch)
        self.passes += 1
        first = self.passes == 1
        delay = self.cfg.slow_seconds if first else self.random.uniform(0, self.cfg.jitter_seconds)
        time.sleep(self.cfg.forward_seconds + delay)
        if self.group is not None and not self._now("collective"):
            dist.all_reduce(torch.ones(1, device=self.device), group=self.group)
        loops = self._now("loop")
        while loops:  # Without a call, so that the stack always ends here.
            pass
        if self._now("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._now("read"):
            # As a file system that does not answer.
            pipe = Path(tempfile.mkdtemp()) / "never-written"
            os.mkfifo(pipe)
            pipe.read_text()
        return self._of(model, batch)

    def _evaluate_slowly(self) -> None:
        """Delay the first batch of an evaluation."""
        if time.monotonic() - self.evaluated > 1.0:
            time.sleep(self.cfg.slow_seconds)
        self.evaluated = time.monotonic()

    def _of(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        x, y = batch
        losses = nn.functional.cross_entropy(model(x), y, reduction="sum")
        return Weighted(losses, len(y))


def _slow_down_checkpoints(seconds: float) -> None:
    save = CheckpointManager.save

    def slow(self: CheckpointManager, *arguments: Any) -> Any:
        time.sleep(seconds)
        return save(self, *arguments)

    CheckpointManager.save = slow  # type: ignore[method-assign, assignment]


def build(cfg: HangConfig, env: RunEnv) -> Hanging:
    return Hanging(cfg, env)
