"""A small task whose ranks crash, or do not exit, after the training."""

import atexit
import os
import threading

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddp_trainer.task import RunEnv, Weighted


class ExitConfig(BaseModel):
    crash: int = 0
    """The rank that crashes in an exit hook."""
    hang: int = 1
    """The rank with a thread that does not end."""


class Exiting:
    def __init__(self, cfg: ExitConfig, env: RunEnv) -> None:
        torch.manual_seed(0)
        x = torch.randn(64, 6)
        self.model = nn.Linear(6, 2)
        self.train_data, self.eval_data = TensorDataset(x, (x.sum(1) > 0).long()), None
        if env.rank == cfg.crash:
            atexit.register(os.abort)
        if env.rank == cfg.hang:
            threading.Thread(target=threading.Event().wait, daemon=False).start()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        x, y = batch
        return Weighted(nn.functional.cross_entropy(model(x), y, reduction="sum"), len(y))


def build(cfg: ExitConfig, env: RunEnv) -> Exiting:
    return Exiting(cfg, env)
