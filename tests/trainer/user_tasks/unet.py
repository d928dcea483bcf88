"""A U-Net that segments images. Batches are dictionaries."""

from typing import Literal

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.task import RunEnv, Weighted


class Settings(BaseModel):
    width: int = 4
    norm: Literal["batch", "group"] = "batch"


class Shapes(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Noisy images of one bright rectangle each, with its mask."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.masks = torch.zeros(count, 16, 16, dtype=torch.long)
        for mask in self.masks:
            top, left = torch.randint(0, 8, (2,), generator=generator).tolist()
            mask[top : top + 7, left : left + 5] = 1
        noise = torch.randn(count, 1, 16, 16, generator=generator)
        self.images = self.masks.unsqueeze(1) + 0.5 * noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self.images[index], "mask": self.masks[index]}


def double(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, outputs):
        layers.append(nn.Conv2d(size, outputs, 3, padding=1, bias=False))
        layers.append(nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(2, outputs))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.down = double(1, width, norm)
        self.bottom = double(width, 2 * width, norm)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = double(2 * width, width, norm)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        skipped = self.down(image)
        low = self.bottom(functional.max_pool2d(skipped, 2))
        scores: Tensor = self.head(self.join(torch.cat([skipped, self.up(low)], dim=1)))
        return scores


class Segmentation:
    def __init__(self, settings: Settings) -> None:
        self.model: nn.Module = UNet(settings.width, settings.norm)
        self.train_data = Shapes(44, seed=1)
        self.eval_data = Shapes(10, seed=2)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Weighted:
        scores = model(batch["image"])
        total = functional.cross_entropy(scores, batch["mask"], reduction="sum")
        return Weighted(total, batch["mask"].numel())

    def metrics(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Weighted]:
        found, mask = model(batch["image"]).argmax(1) == 1, batch["mask"] == 1
        iou = Weighted((found & mask).sum().float(), (found | mask).sum())
        return {"loss": self.loss(model, batch), "iou": iou}


def build(settings: Settings, env: RunEnv) -> Segmentation:
    return Segmentation(settings)
