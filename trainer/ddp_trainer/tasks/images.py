"""Images in ten classes: handwritten digits, CIFAR-10 from a directory, or made ones."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ddp_trainer.errors import InputError

CLASSES = 10
TEST_EVERY = 5
"""Every fifth sample is for the test, where the data do not say which: whatever the seed."""

_DIGIT_MAX = 16.0
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of an image: its class, then red, green and blue, row by row."""
_CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR_TEST = ("test_batch.bin",)
_SYNTHETIC_NOISE = 1.0


@dataclass(frozen=True, slots=True)
class Labelled:
    """Images (n, channels, size, size), floats or bytes, and their classes (n,)."""

    images: Tensor
    classes: Tensor


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Two parts, with what their pixels are like."""

    train: Labelled
    test: Labelled
    mean: float
    """Of all numbers of the training images, as they are stored."""
    std: float


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images and their classes, moved by a few pixels at random."""

    def __init__(self, part: Labelled, shift: int) -> None:
        self.images = part.images
        self.classes = part.classes
        self.shift = shift

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, classes = self.__getitems__([index])
        return images[0], classes[0]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch at once: images (n, channels, size, size) and classes (n,)."""
        images, classes = self.images[indices], self.classes[indices]
        return (_moved(images, self.shift) if self.shift else images), classes


def digits() -> ImageSet:
    """1797 handwritten digits of 8 x 8 pixels from 0 to 1, which scikit-learn carries.

    Found without importing scikit-learn, which takes longer than the training needs for an epoch.

    Raises:
        InputError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InputError("task miniresnet: needs scikit-learn, which carries its data")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=","))
    images = table[:, :-1].float().view(-1, 1, 8, 8) / _DIGIT_MAX
    return _divided(images, table[:, -1].long(), mean=0.31, std=0.38)


def cifar10(directory: str) -> ImageSet:
    """CIFAR-10's binary version: 60,000 colour images of 32 x 32 bytes.

    Args:
        directory: Where `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` lie.

    Raises:
        InputError: A file is missing, or is not of that format.
    """
    train, test = (_cifar_part(Path(directory), names) for names in (_CIFAR_TRAIN, _CIFAR_TEST))
    return ImageSet(train, test, mean=120.7, std=64.15)


def synthetic(count: int) -> ImageSet:
    """Noise over one fixed pattern per class: as large as CIFAR-10's images, with no file to read.

    Args:
        count: Images, test images included.
    """
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, *_CIFAR_SHAPE, generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, *_CIFAR_SHAPE, generator=generator)
    images = patterns[classes] + _SYNTHETIC_NOISE * noise
    return _divided(images, classes, mean=0.0, std=(1 + _SYNTHETIC_NOISE**2) ** 0.5)


def _divided(images: Tensor, classes: Tensor, mean: float, std: float) -> ImageSet:
    test = torch.arange(len(images)) % TEST_EVERY == 0
    train_part = Labelled(images[~test], classes[~test])
    return ImageSet(train_part, Labelled(images[test], classes[test]), mean, std)


def _cifar_part(directory: Path, names: tuple[str, ...]) -> Labelled:
    records = np.concatenate([_cifar_records(directory / name) for name in names])
    classes = torch.from_numpy(records[:, 0].astype(np.int64))
    images = torch.from_numpy(records[:, 1:].copy()).view(-1, *_CIFAR_SHAPE)
    return Labelled(images, classes)


def _cifar_records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(
            f"task miniresnet: cannot read {path} of CIFAR-10's binary version: {error.strerror}"
        ) from error
    if not data.size or data.size % _CIFAR_RECORD:
        raise InputError(
            f"task miniresnet: {path} must be records of {_CIFAR_RECORD} bytes, as in CIFAR-10's"
            f" binary version, not {data.size} bytes"
        )
    return data.reshape(-1, _CIFAR_RECORD)


def _moved(images: Tensor, shift: int) -> Tensor:
    """Each image moved by up to `shift` pixels each way, the border filled with zeros."""
    count, channels, height, width = images.shape
    padded = functional.pad(images, (shift, shift, shift, shift))
    down, right = torch.randint(0, 2 * shift + 1, (2, count, 1, 1, 1))
    rows = down + torch.arange(height).view(1, 1, -1, 1)
    columns = right + torch.arange(width).view(1, 1, 1, -1)
    sample = torch.arange(count).view(-1, 1, 1, 1)
    return padded[sample, torch.arange(channels).view(1, -1, 1, 1), rows, columns]
