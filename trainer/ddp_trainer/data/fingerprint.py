"""Compute a fingerprint of a data set, with which ranks check that they read the same data."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import is_indexed

HASHED_SAMPLES = 4
"""Number of samples that the fingerprint hashes, at equal distances in the data set."""


def fingerprint(data: Any) -> str:
    """Return the type of the data set, its number of samples, and a hash of a few samples.

    A sample that differs when it is read twice is hashed by its shape and type only. The
    fingerprint cannot seed the sample's random generator. Data without an index are described only
    by their type, because reading the samples might consume them.

    Args:
        data: Training or evaluation data.

    Returns:
        For example `Folder, 1200 samples, 5d0c21e9`.
    """
    kind = type(data).__name__
    if data is None or not is_indexed(data):
        return kind
    size = len(data)
    digest = hashlib.blake2b(digest_size=4)
    for index in sorted({size * number // HASHED_SAMPLES for number in range(HASHED_SAMPLES)}):
        first, second = (encode(_sample(data, index), values=True) for _ in range(2))
        digest.update(first if first == second else encode(_sample(data, index), values=False))
    return f"{kind}, {size} samples, {digest.hexdigest()}"


def _sample(data: Any, index: int) -> Any:
    seed_all(derive_seed("fingerprint", index))
    return data[index]


def encode(value: Any, *, values: bool) -> bytes:
    """Encode a sample as bytes: equal samples have equal bytes.

    Args:
        value: A sample, or a part of it.
        values: Whether to encode the values, or only their types and shapes.
    """
    if isinstance(value, torch.Tensor):
        head = f"{value.dtype}{tuple(value.shape)}".encode()
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return head + (flat.numpy().tobytes() if values else b"")
    if isinstance(value, np.ndarray) and value.dtype != object:
        head = f"{value.dtype}{value.shape}".encode()
        return head + (value.tobytes() if values else b"")
    if isinstance(value, Mapping):
        pairs = sorted((str(key), encode(item, values=values)) for key, item in value.items())
        return b"".join(key.encode() + item for key, item in pairs)
    if isinstance(value, (list, tuple)):
        return b"(" + b",".join(encode(item, values=values) for item in value) + b")"
    if isinstance(value, (bool, int, float, str, bytes)) and values:
        return repr(value).encode()
    return type(value).__name__.encode()
