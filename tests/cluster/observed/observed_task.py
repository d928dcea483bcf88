"""The sample task with a slow rank in one attempt, a part of its loss, and memory of a GPU."""

import os
import time
from types import SimpleNamespace

from torch import Tensor, nn

from ddp_trainer.observe import times
from ddp_trainer.task import RunEnv, Weighted
from ddp_trainer.tasks.miniresnet import MiniResNetConfig, MiniResNetTask

SLOW_ATTEMPT = "2"
SLOW_RANK = 3
SLOW_SECONDS = 0.03
"""Added duration of the forward passes of the slow rank. The pass itself takes a few
milliseconds."""


class ObservedTask(MiniResNetTask):
    def __init__(self, cfg: MiniResNetConfig, env: RunEnv) -> None:
        super().__init__(cfg)
        attempt = os.environ.get("DDP_ATTEMPT")
        self.slow = env.rank == SLOW_RANK and attempt == SLOW_ATTEMPT
        memory = (3 + env.rank) << 30
        # The heartbeats alone see this CUDA, so the rank trains on the CPU.
        cuda = SimpleNamespace(is_initialized=lambda: True, memory_allocated=lambda: memory)
        vars(times)["torch"] = SimpleNamespace(cuda=cuda)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        if self.slow and model.training:
            time.sleep(SLOW_SECONDS)
        weighted = super().loss(model, batch)
        return Weighted(weighted.sum, weighted.count, {"cross_entropy": weighted.sum.detach()})


def build(cfg: MiniResNetConfig, env: RunEnv) -> ObservedTask:
    return ObservedTask(cfg, env)
