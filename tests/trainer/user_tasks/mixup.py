"""A classifier trained with mixup: the loss mixes the images of a batch."""

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    alpha: float = 0.4
    """Parameter of the mix; 0 turns it off."""


def images(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 4, (count,), generator=generator)
    noise = torch.randn(count, 1, 6, 6, generator=generator)
    return TensorDataset(noise + classes.reshape(-1, 1, 1, 1), classes)


@dataclass
class Mixup:
    settings: Settings
    model: nn.Module
    train_data: TensorDataset
    eval_data: TensorDataset

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        x, y = batch
        if not model.training or not self.settings.alpha:
            return Weighted(cross_entropy(model(x), y, reduction="sum"), len(y))
        share = float(np.random.beta(self.settings.alpha, self.settings.alpha))
        other = torch.randperm(len(x), device=x.device)
        scores = model(share * x + (1 - share) * x[other])
        one, two = (cross_entropy(scores, target, reduction="sum") for target in (y, y[other]))
        return Weighted(share * one + (1 - share) * two, len(y))


def build(settings: Settings, env: RunEnv) -> Mixup:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4))
    return Mixup(settings, model, images(44, seed=1), images(10, seed=2))
