"""Tell sine waves apart by their frequency."""

from types import SimpleNamespace

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddp_trainer.task import RunEnv, Weighted

POINTS = 32
FREQUENCIES = 4


class WavesConfig(BaseModel, extra="forbid"):
    """Settings of the task, `config.task` in a job."""

    width: int = Field(default=32, ge=1)
    """Width of the hidden layer."""
    noise: float = Field(default=0.3, ge=0)
    """Standard deviation of the noise that is added to each wave."""


def waves(number: int, noise: float, seed: int) -> TensorDataset:
    """Return noisy waves, tensor (number, POINTS), and their classes, tensor (number,)."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(FREQUENCIES, (number,), generator=generator)
    phases = 2 * torch.pi * torch.rand(number, 1, generator=generator)
    times = 2 * torch.pi * torch.arange(POINTS) / POINTS
    clean = torch.sin((classes[:, None] + 1) * times + phases)
    return TensorDataset(clean + noise * torch.randn(clean.shape, generator=generator), classes)


def loss(model: nn.Module, batch: list[Tensor]) -> Weighted:
    """Return the cross-entropy summed over waves."""
    x, classes = batch
    return Weighted(nn.functional.cross_entropy(model(x), classes, reduction="sum"), len(classes))


def metrics(model: nn.Module, batch: list[Tensor]) -> dict[str, Weighted]:
    """Return the number of waves whose frequency was found."""
    x, classes = batch
    return {"accuracy": Weighted((model(x).argmax(dim=1) == classes).sum(), len(classes))}


def build(cfg: WavesConfig, env: RunEnv) -> SimpleNamespace:  # noqa: ARG001 - part of a task
    """Build the task."""
    model = nn.Sequential(
        nn.Linear(POINTS, cfg.width), nn.GELU(), nn.Linear(cfg.width, FREQUENCIES)
    )
    return SimpleNamespace(
        model=model,
        train_data=waves(4000, cfg.noise, 0),
        eval_data=waves(1000, cfg.noise, 1),
        loss=loss,
        metrics=metrics,
    )
