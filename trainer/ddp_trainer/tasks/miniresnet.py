"""A small residual network on scikit-learn's handwritten digits: 8 x 8 pixels, ten classes."""

from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.errors import InputError
from ddp_trainer.task import RunEnv, Weighted

CLASSES = 10
PIXEL_MAX = 16.0
PIXEL_MEAN = 0.31
PIXEL_STD = 0.38
TEST_EVERY = 5
"""Every fifth sample is for the test: a fixed split, whatever the seed."""


class DigitsConfig(BaseModel):
    """Settings of the task."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    width: int = Field(default=16, ge=8, multiple_of=8)
    """Channels of the first stage; the second has twice as many."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks per stage."""
    shift: int = Field(default=0, ge=0, le=3)
    """Pixels by which training images are moved at most, each way; pays in runs of 50 epochs on."""


class Digits(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images (1, 8, 8) from 0 to 1 and their classes, moved by a few pixels at random."""

    def __init__(self, images: Tensor, classes: Tensor, shift: int) -> None:
        self.images = images
        self.classes = classes
        self.shift = shift

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, classes = self.__getitems__([index])
        return images[0], classes[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch at once: images (n, 1, 8, 8) and classes (n,)."""
        images, classes = self.images[indices], self.classes[indices]
        return (_moved(images, self.shift) if self.shift else images), classes


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, normalised first (arXiv:1603.05027).

    GroupNorm instead of BatchNorm: it has no statistics, so results depend neither on the number of
    ranks nor on the batch. SiLU instead of ReLU: it has no kink, at which a last bit that another
    order of summing changes would grow to a difference that can be seen.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        y = functional.silu(self.norm1(x))
        z = self.conv1(y)
        z = self.conv2(functional.silu(self.norm2(z)))
        return cast("Tensor", z + self.shortcut(x))


class MiniResNet(nn.Module):
    """A stem, two stages of residual blocks, and a linear classifier over what is left."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        first = [Block(width, width, 1) for _ in range(blocks)]
        second = [Block(2 * width, 2 * width, 1) for _ in range(blocks - 1)]
        self.stages = nn.Sequential(*first, Block(width, 2 * width, 2), *second)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.head = nn.Linear(2 * width * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (n, 1, 8, 8) to class scores (n, 10)."""
        x = self.stages(self.stem((images - PIXEL_MEAN) / PIXEL_STD))
        scores: Tensor = self.head(functional.silu(self.norm(x)).flatten(1))
        return scores


class DigitsTask:
    """Classification with cross-entropy; reports loss and accuracy on the test split."""

    def __init__(self, cfg: DigitsConfig) -> None:
        table = torch.from_numpy(np.loadtxt(_digits_file(), delimiter=","))
        x = table[:, :-1].float().view(-1, 1, 8, 8) / PIXEL_MAX
        y = table[:, -1].long()
        test = torch.arange(len(y)) % TEST_EVERY == 0
        self.train_data = Digits(x[~test], y[~test], cfg.shift)
        self.eval_data = Digits(x[test], y[test], 0)
        self.model: nn.Module = MiniResNet(cfg.width, cfg.blocks)

    def collate(self, samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The data gives whole batches already."""
        return samples

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        """Cross-entropy summed over images."""
        images, classes = batch
        total = functional.cross_entropy(model(images), classes, reduction="sum")
        return Weighted(total, len(classes))

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Weighted]:
        """Cross-entropy and the number of images that are recognised."""
        images, classes = batch
        scores = model(images)
        count = len(classes)
        return {
            "loss": Weighted(functional.cross_entropy(scores, classes, reduction="sum"), count),
            "accuracy": Weighted((scores.argmax(1) == classes).sum(), count),
        }


def build(cfg: DigitsConfig, env: RunEnv) -> DigitsTask:  # noqa: ARG001 - the door's signature
    """Makes the task."""
    return DigitsTask(cfg)


def _digits_file() -> Path:
    """The table within scikit-learn: a row per image, 64 pixels and the class.

    Found without importing scikit-learn, which takes longer than the training needs for an epoch.

    Raises:
        InputError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InputError("task miniresnet: needs scikit-learn, which carries its data")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _moved(images: Tensor, shift: int) -> Tensor:
    """Each image (1, 8, 8) moved by up to `shift` pixels each way, the border filled with zeros."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (shift, shift, shift, shift))
    down, right = torch.randint(0, 2 * shift + 1, (2, count, 1, 1))
    rows = (down + torch.arange(height).view(1, -1, 1)).expand(count, height, width)
    columns = (right + torch.arange(width).view(1, 1, -1)).expand(count, height, width)
    return padded[torch.arange(count).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)
