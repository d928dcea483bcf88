"""A VQ autoencoder. Its codebook is a moving average in buffers."""

from types import SimpleNamespace

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    codes: int = 8
    width: int = 4
    moving: bool = True
    """Whether the codebook follows the encoder. Otherwise the gradient trains it."""


class Codebook(nn.Module):
    counts: Tensor
    sums: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        codes = torch.randn(settings.codes, settings.width)
        self.moving = settings.moving
        if settings.moving:
            self.register_buffer("codes", codes)
            self.register_buffer("counts", torch.ones(settings.codes))
            self.register_buffer("sums", codes.clone())
        else:
            self.codes = nn.Parameter(codes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(x, self.codes).argmin(1)
        if self.training and self.moving:
            self.follow(x.detach(), nearest)
        found = self.codes[nearest]
        distance = (x - found.detach()).square().sum()
        if not self.moving:
            distance = distance + (x.detach() - found).square().sum()
        return x + (found - x).detach(), distance

    @torch.no_grad()
    def follow(self, x: Tensor, nearest: Tensor) -> None:
        hits = functional.one_hot(nearest, len(self.codes)).to(x.dtype)
        self.counts.lerp_(hits.sum(0), 0.1)
        self.sums.lerp_(hits.T @ x, 0.1)
        self.codes.copy_(self.sums / self.counts.clamp_min(1e-3).unsqueeze(1))


class Autoencoder(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, settings.width))
        self.codebook = Codebook(settings)
        self.decoder = nn.Sequential(nn.Linear(settings.width, 16), nn.Tanh(), nn.Linear(16, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code, distance = self.codebook(self.encoder(x))
        return self.decoder(code), distance


def loss(model: nn.Module, batch: Tensor) -> Weighted:
    output, distance = model(batch)
    error = (output - batch).square().sum()
    parts = {"reconstruction": error, "commitment": distance}
    return Weighted(error + 0.25 * distance, len(batch), parts=parts)


def build(settings: Settings, env: RunEnv) -> SimpleNamespace:
    train, test = torch.randn(54, 12, generator=torch.Generator().manual_seed(1)).split([44, 10])
    return SimpleNamespace(model=Autoencoder(settings), train_data=train, eval_data=test, loss=loss)
