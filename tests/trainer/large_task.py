"""A model that is larger than the memory that the test leaves to one rank."""

from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from ddp_trainer.task import RunEnv, Weighted


class LargeConfig(BaseModel):
    width: int = 512
    layers: int = 4
    deferred: bool = True
    tied: bool = False


class Inputs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.width, generator=generator), torch.tensor(index % 3)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Large(nn.Module):
    def __init__(self, cfg: LargeConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(cfg.width) for _ in range(cfg.layers))
        self.first = nn.Linear(cfg.width, 3, bias=False)
        self.head = nn.Linear(cfg.width, 3)
        self.scale = nn.BatchNorm1d(cfg.width)
        if cfg.tied:
            self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x) + self.first(x)
        return scores


class LargeTask:
    def __init__(self, cfg: LargeConfig, env: RunEnv) -> None:
        self.train_data, self.eval_data = Inputs(cfg.width), None
        with env.deferred_weights() if cfg.deferred else torch.device("cpu"):
            self.model: nn.Module = Large(cfg)

    def loss(self, model: nn.Module, batch: Any) -> Weighted:
        x, y = batch
        each = nn.functional.cross_entropy(model(x), y, reduction="none")
        return Weighted(each.sum(), len(x))


def build(cfg: LargeConfig, env: RunEnv) -> LargeTask:
    return LargeTask(cfg, env)
