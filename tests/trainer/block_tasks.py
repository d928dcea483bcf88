"""Tasks whose repeated blocks change buffers and draw random numbers in their forward pass."""

import random

import numpy as np
import torch
from torch import Tensor, nn

from ddp_trainer.task import RunEnv
from tests.trainer.buffer_tasks import Channels, Codebook, Normalizer, Queue
from tests.trainer.sample_tasks import ProbeConfig, ProbeTask


class BlockConfig(ProbeConfig):
    late: int = 0
    """Number of passes in which the normaliser of a block does not change."""
    codebook: bool = True


class Block(nn.Module):
    """Residual block whose forward pass changes buffers of each kind and draws random numbers."""

    table: Tensor

    def __init__(self, cfg: BlockConfig) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.live = nn.Sequential(Normalizer(cfg.late), Queue(), Channels())
        if cfg.codebook:
            self.live.append(Codebook())
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: Tensor) -> Tensor:
        scale = random.random() + float(np.random.rand())  # noqa: NPY002, S311 - as user code
        found: Tensor = x + 0.1 * torch.tanh(self.linear(self.live(x * scale)) + self.table)
        return found


class BlockTask(ProbeTask):
    def __init__(self, cfg: BlockConfig, env: RunEnv) -> None:
        super().__init__(cfg, env)
        self.model = nn.Sequential(nn.Sequential(Block(cfg), Block(cfg)), nn.Linear(6, 3))


def build(cfg: BlockConfig, env: RunEnv) -> BlockTask:
    return BlockTask(cfg, env)
