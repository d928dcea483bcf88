"""Large models on random data for GPUs: ResNet-50 and GPT-2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional

from bench.loops.workloads import TimedTask
from ddp_trainer.task import RunEnv, Weighted
from ddp_trainer.tasks.gpt import Gpt, GptConfig

POOL = 8
"""Number of random batches, which are used in turn."""


class Pool:
    """Random batches in host memory, which is pinned if there is a GPU."""

    def __init__(
        self, batches: Sequence[tuple[Tensor, ...]], batch: int, device: torch.device
    ) -> None:
        pinned = device.type == "cuda"
        self._batches = [tuple(t.pin_memory() if pinned else t for t in b) for b in batches]
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batches) * self._batch

    def __getitem__(self, index: int) -> Any:
        return tuple(part[index % self._batch] for part in self._batches[index // self._batch])

    def __getitems__(self, indices: list[int]) -> Any:
        return self._batches[indices[0] // self._batch % len(self._batches)]


class Bottleneck(nn.Module):
    """Bottleneck block of ResNet v1.5: three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_normed(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_normed(inputs, outputs, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, 4 width, h / stride, w / stride)."""
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class ResNet(nn.Module):
    """ResNet: a stem, four stages of blocks, the mean over pixels, a linear classifier."""

    def __init__(self, depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        stem = (*_normed(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (n, 3, h, w) from 0 to 255 to class scores (n, classes)."""
        x = self.body((pixels.float() - 127.5) / 64.0)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class ImageSettings(BaseModel):
    """Sizes of the image task. The defaults are ResNet-50 on ImageNet."""

    samples: int
    batch: int
    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    pixels: int = 224
    classes: int = 1000


@dataclass
class Classify:
    """Task that classifies random images."""

    model: nn.Module
    train_data: Pool
    eval_data: None = None

    def collate(self, samples: Any) -> Any:
        """Return the batch as it is, because the data set yields whole batches."""
        return samples

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        """Return the cross-entropy summed over images."""
        images, classes = batch
        total = functional.cross_entropy(model(images), classes, reduction="sum")
        return Weighted(total, len(classes))


def images(cfg: ImageSettings, env: RunEnv) -> TimedTask:
    """Return the ResNet-50 task, with weights and images in channels-last format."""
    model = ResNet(cfg.depths, cfg.width, cfg.classes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # it lacks a stub
    shape = (cfg.batch, 3, cfg.pixels, cfg.pixels)
    batches = [
        (
            torch.randint(256, shape, dtype=torch.uint8).to(memory_format=torch.channels_last),
            torch.randint(cfg.classes, (cfg.batch,)),
        )
        for _ in range(POOL)
    ]
    return TimedTask(Classify(model, Pool(batches, cfg.batch, env.device)), cfg.samples)


class TokenSettings(GptConfig):
    """Sizes of the language task. The defaults are the smallest GPT-2 with a padded vocabulary."""

    samples: int
    batch: int
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    symbols: int = 50_304


@dataclass
class Predict:
    """Task that predicts random tokens."""

    model: nn.Module
    train_data: Pool
    eval_data: None = None

    def collate(self, samples: Any) -> Any:
        """Return the batch as it is, because the data set yields whole batches."""
        return samples

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Weighted:
        """Return the cross-entropy summed over tokens."""
        (tokens,) = batch
        scores = model(tokens[:, :-1]).flatten(0, 1)
        following = tokens[:, 1:].flatten()
        total = functional.cross_entropy(scores, following, reduction="sum")
        return Weighted(total, following.numel())


def tokens(cfg: TokenSettings, env: RunEnv) -> TimedTask:
    """Return the GPT-2 task."""
    shape = (cfg.batch, cfg.context + 1)
    batches = [(torch.randint(cfg.symbols, shape),) for _ in range(POOL)]
    pool = Pool(batches, cfg.batch, env.device)
    return TimedTask(Predict(Gpt(cfg, cfg.symbols), pool), cfg.samples)
