"""A small residual network for images in ten classes, by default handwritten digits."""

from typing import Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.task import RunEnv, Weighted
from ddp_trainer.tasks.images import CLASSES, Images, ImageSet, cifar10, digits, synthetic

FINAL_SIZE = 4
"""Width and height in pixels of the classifier's input."""
SYNTHETIC_COUNT = 10_000


class MiniResNetConfig(BaseModel):
    """Settings of the MiniResNet task."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    data: Literal["digits", "cifar10", "synthetic"] = "digits"
    """Data set: handwritten digits of 8 x 8 pixels, CIFAR-10 from `directory`, or synthetic images
    of CIFAR-10's shape."""
    directory: str | None = None
    """Directory with CIFAR-10's binary version."""
    count: int | None = Field(default=None, ge=10)
    """Number of synthetic images. One in five is a test image. Default: 10,000."""
    width: int = Field(default=16, ge=8, multiple_of=8)
    """Number of channels of the first stage. Each further stage doubles it."""
    blocks: int = Field(default=1, ge=1)
    """Number of residual blocks per stage."""
    shift: int = Field(default=0, ge=0, le=4)
    """Maximum random shift of training images, in pixels. It helps only in runs of about 50 epochs
    or more."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.data == "cifar10" and self.directory is None:
            raise ValueError('"directory" must name the folder of CIFAR-10\'s binary version')
        why = f"must not be set with {self.data}, because it has no effect"
        if self.data != "cifar10" and self.directory is not None:
            raise ValueError(f'"directory" {why}')
        if self.data != "synthetic" and self.count is not None:
            raise ValueError(f'"count" {why}')
        return self


class ResidualBlock(nn.Module):
    """Residual block of two 3 x 3 convolutions with pre-activation (arXiv:1603.05027).

    It uses GroupNorm instead of BatchNorm, because GroupNorm has no running statistics: results
    depend neither on the number of ranks nor on the batch. It uses SiLU instead of ReLU, because a
    ReLU's kink can turn a rounding difference between two summation orders into a visible one.
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
        """Map a tensor of shape (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        y = functional.silu(self.norm1(x))
        z = self.conv1(y)
        z = self.conv2(functional.silu(self.norm2(z)))
        return cast("Tensor", z + self.shortcut(x))


class MiniResNet(nn.Module):
    """Residual network: a stem, stages of residual blocks and a linear classifier.

    Each stage after the first halves the image size and doubles the channels, down to 4 x 4 pixels.
    """

    def __init__(self, data: ImageSet, width: int, blocks: int) -> None:
        super().__init__()
        channels, size = data.train.images.shape[1:3]
        self.mean, self.std = data.mean, data.std
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        stages = [ResidualBlock(width, width, 1) for _ in range(blocks)]
        while size > FINAL_SIZE:
            rest = [ResidualBlock(2 * width, 2 * width, 1) for _ in range(blocks - 1)]
            stages += [ResidualBlock(width, 2 * width, 2), *rest]
            size, width = size // 2, 2 * width
        self.stages = nn.Sequential(*stages)
        self.norm = nn.GroupNorm(8, width)
        self.head = nn.Linear(width * size * size, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Map stored images (n, channels, size, size) to class scores (n, 10)."""
        x = self.stages(self.stem((images - self.mean) / self.std))
        scores: Tensor = self.head(functional.silu(self.norm(x)).flatten(1))
        return scores


class MiniResNetTask:
    """Classification with cross-entropy. Its metrics are loss and accuracy on the test images."""

    def __init__(self, cfg: MiniResNetConfig) -> None:
        data = _images(cfg)
        self.train_data = Images(data.train, cfg.shift)
        self.eval_data = Images(data.test, 0)
        self.model: nn.Module = MiniResNet(data, cfg.width, cfg.blocks)

    def collate(self, samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the samples unchanged, because the data set returns whole batches."""
        return samples

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Weighted:
        """Return the cross-entropy summed over images."""
        images, classes = batch
        total = functional.cross_entropy(model(images), classes, reduction="sum")
        return Weighted(total, len(classes))

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Weighted]:
        """Return the cross-entropy and the number of correctly classified images."""
        images, classes = batch
        scores = model(images)
        count = len(classes)
        return {
            "loss": Weighted(functional.cross_entropy(scores, classes, reduction="sum"), count),
            "accuracy": Weighted((scores.argmax(1) == classes).sum(), count),
        }


def build(cfg: MiniResNetConfig, env: RunEnv) -> MiniResNetTask:  # noqa: ARG001 - part of the task interface
    """Build the task."""
    return MiniResNetTask(cfg)


def _images(cfg: MiniResNetConfig) -> ImageSet:
    if cfg.data == "cifar10":
        return cifar10(cast("str", cfg.directory))
    return synthetic(cfg.count or SYNTHETIC_COUNT) if cfg.data == "synthetic" else digits()
