"""A task with large loss counts, and a probe of the counts that the ranks reduce."""

import gc
import json
import os
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddp_trainer.config.settings import resolve
from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.step import train_step
from ddp_trainer.stop import StopFlag
from ddp_trainer.task import RunEnv, Weighted

PIXELS = 70_001
"""Loss count of each sample. It is neither in the range of fp16, nor exact in fp16 or bf16."""


class PixelConfig(BaseModel):
    pass


class PixelTask:
    """A regression in which each sample counts as if it were many pixels."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(24, 4, generator=generator)
        self.model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.train_data = TensorDataset(x, x.sum(1, keepdim=True))
        self.eval_data = None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        x, y = batch
        squares = 1e-3 * (model(x) - y).square()  # Small enough for gradients in fp16.
        return Weighted(PIXELS * squares.sum(), PIXELS * len(x))


def build(cfg: PixelConfig, env: RunEnv) -> PixelTask:
    del cfg, env
    return PixelTask()


def report_counts(config: dict[str, Any]) -> None:
    """Print of each update the reduced count, the largest change of a weight, and the flag."""
    ranks = Ranks.from_environment(os.environ)
    request = RunRequest("tests.trainer.numerics.guard_probes:build", resolve(config))
    run = open_run(request, ranks, StopFlag(), HeartbeatWriter(None, ranks, 0))
    counts, sizes, flags = [], [], []
    guard = run.learner.guard
    divide = guard.divide

    def recording_divide(gradients: list[Tensor], count: Tensor) -> None:
        counts.append(count.item())
        divide(gradients, count)

    guard.divide = recording_divide  # type: ignore[method-assign]
    for step, update in enumerate(by_update(on_device(run.train_loader, run.learner.device))):
        before = [param.detach().clone() for param in run.learner.params]
        train_step(run.learner, update, step, 1.0)
        pairs = zip(before, run.learner.params, strict=True)
        sizes.append(max(float((new.detach() - old).abs().max()) for old, new in pairs))
        flags.append(guard.nonfinite.item())
    if ranks.is_first:
        probe = {"counts": counts, "sizes": sizes, "flagged": any(flags)}
        print(json.dumps({"event": "probe", **probe}), flush=True)
    del run
    gc.collect()
    process_group.leave()
