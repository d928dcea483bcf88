"""A model with a head per kind of sample. A batch without a kind leaves its head unused."""

from dataclasses import dataclass

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    rare: float = 0.1
    """Fraction of the samples that are of the second kind."""


def samples(count: int, rare: float, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    kind = (torch.rand(count, generator=generator) < rare).long()
    kind[0] = 1
    return TensorDataset(x, kind, x.sum(1) * (1 + kind))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(2))

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        features = self.trunk(x)
        output = torch.zeros_like(features[:, 0])
        for number, head in enumerate(self.heads):
            chosen = kind == number
            if chosen.any():
                output[chosen] = head(features[chosen]).squeeze(1)
        return output


@dataclass
class Kinds:
    model: nn.Module
    train_data: TensorDataset
    eval_data: TensorDataset

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Weighted:
        x, kind, target = batch
        return Weighted((model(x, kind) - target).square().sum(), len(x))


def build(settings: Settings, env: RunEnv) -> Kinds:
    return Kinds(Heads(), samples(44, settings.rare, seed=1), samples(10, settings.rare, seed=2))
