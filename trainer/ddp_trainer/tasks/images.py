"""Image data sets with ten classes: handwritten digits, CIFAR-10 or synthetic images."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ddp_trainer.errors import InputError

CLASSES = 10
TEST_EVERY = 5
"""Interval of test samples in a data set without a split. The seed does not affect the split."""

_DIGITS = Path(__file__).parent / "data" / "digits.csv.gz"
_DIGIT_MAX = 16.0
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes per image: its class, then the red, green and blue channels, row by row."""
_CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR_TEST = ("test_batch.bin",)
_SYNTHETIC_NOISE = 1.0


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images, float or byte tensor (n, channels, size, size), and their classes, tensor (n,)."""

    images: Tensor
    classes: Tensor


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Training and test images with the statistics for normalisation."""

    train: LabelledImages
    test: LabelledImages
    mean: float
    """Mean of all stored values of the training images."""
    std: float
    """Standard deviation of all stored values of the training images."""


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Data set of images and classes. Each read shifts the image by a few pixels at random."""

    def __init__(self, part: LabelledImages, shift: int) -> None:
        self.images = part.images
        self.classes = part.classes
        self.shift = shift

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, classes = self.__getitems__([index])
        return images[0], classes[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return a batch: images of shape (n, channels, size, size) and classes of shape (n,)."""
        images, classes = self.images[indices], self.classes[indices]
        return (_shifted(images, self.shift) if self.shift else images), classes


def digits() -> ImageSet:
    """Return 1797 handwritten digits, 8 x 8 pixels with values from 0 to 1.

    The file is within this package; `data/README.md` states its source and licence.
    """
    table = torch.from_numpy(np.loadtxt(_DIGITS, delimiter=","))
    images = table[:, :-1].float().view(-1, 1, 8, 8) / _DIGIT_MAX
    return _split(images, table[:, -1].long(), mean=0.31, std=0.38)


def cifar10(directory: str) -> ImageSet:
    """Return CIFAR-10 from its binary version: 60,000 colour images of 32 x 32 pixels.

    Args:
        directory: Directory with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.

    Raises:
        InputError: If a file is missing or has another format.
    """
    train, test = (_cifar_part(Path(directory), names) for names in (_CIFAR_TRAIN, _CIFAR_TEST))
    return ImageSet(train, test, mean=120.7, std=64.15)


def synthetic(count: int) -> ImageSet:
    """Return synthetic images of CIFAR-10's shape: one fixed pattern per class plus noise.

    Args:
        count: Number of images, including the test images.
    """
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, *_CIFAR_SHAPE, generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, *_CIFAR_SHAPE, generator=generator)
    images = patterns[classes] + _SYNTHETIC_NOISE * noise
    return _split(images, classes, mean=0.0, std=(1 + _SYNTHETIC_NOISE**2) ** 0.5)


def _split(images: Tensor, classes: Tensor, mean: float, std: float) -> ImageSet:
    """Split images into training and test images."""
    test = torch.arange(len(images)) % TEST_EVERY == 0
    train_part = LabelledImages(images[~test], classes[~test])
    return ImageSet(train_part, LabelledImages(images[test], classes[test]), mean, std)


def _cifar_part(directory: Path, names: tuple[str, ...]) -> LabelledImages:
    records = np.concatenate([_cifar_records(directory / name) for name in names])
    classes = torch.from_numpy(records[:, 0].astype(np.int64))
    images = torch.from_numpy(records[:, 1:].copy()).view(-1, *_CIFAR_SHAPE)
    return LabelledImages(images, classes)


def _cifar_records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(
            f"task miniresnet: cannot read {path} of CIFAR-10's binary version: {error.strerror}"
        ) from error
    if not data.size or data.size % _CIFAR_RECORD:
        raise InputError(
            f"task miniresnet: {path} must consist of records of {_CIFAR_RECORD} bytes, as in"
            f" CIFAR-10's binary version, but has {data.size} bytes"
        )
    return data.reshape(-1, _CIFAR_RECORD)


def _shifted(images: Tensor, shift: int) -> Tensor:
    """Return each image shifted at random by up to `shift` pixels, with zeros at the border."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (shift, shift, shift, shift))
    down, right = torch.randint(0, 2 * shift + 1, (2, count, 1, 1, 1))
    rows = down + torch.arange(height).view(1, 1, -1, 1)
    columns = right + torch.arange(width).view(1, 1, 1, -1)
    sample = torch.arange(count).view(-1, 1, 1, 1)
    return padded[sample, torch.arange(channels).view(1, -1, 1, 1), rows, columns]
