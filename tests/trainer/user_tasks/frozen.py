"""A new head on a frozen backbone with BatchNorm."""

from types import SimpleNamespace

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    classes: int = 3


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __init__(self, count: int, classes: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.classes = torch.randint(0, classes, (count,), generator=generator)
        self.images = torch.randn(count, 3, 8, 8, generator=generator)
        self.images += self.classes.reshape(-1, 1, 1, 1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.classes[index])


def pretrained() -> nn.Sequential:
    """Return a backbone with the statistics that another training would have left."""
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        for _ in range(5):
            backbone(1 + torch.randn(16, 3, 8, 8))
    return backbone


class Classifier(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = pretrained().requires_grad_(False).eval()
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(images)
        scores: Tensor = self.head(features)
        return scores


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
    images, classes = batch
    total = nn.functional.cross_entropy(model(images), classes, reduction="sum")
    return Weighted(total, len(classes))


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Weighted]:
    images, classes = batch
    right = (model(images).argmax(1) == classes).sum()
    return {"accuracy": Weighted(right.float(), len(classes))}


def build(settings: Settings, env: RunEnv) -> SimpleNamespace:
    return SimpleNamespace(
        model=Classifier(settings.classes),
        train_data=Images(44, settings.classes, seed=1),
        eval_data=Images(10, settings.classes, seed=2),
        loss=loss,
        metrics=metrics,
    )
