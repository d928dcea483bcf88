"""Derive each seed by hashing the purpose of the random draw.

No draw depends on how often a generator was used before. A resumed run therefore draws the same
numbers as an uninterrupted run, and checkpoints need no generator state.
"""

import hashlib
import random

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed from `parts`, hashed so that neighbouring inputs do not collide."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - user code draws from the global generator
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seed torch's global generators, cheaply enough for a call before every forward pass.

    `torch.manual_seed` is slower: while CUDA is not initialized it records a stack trace per call.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
