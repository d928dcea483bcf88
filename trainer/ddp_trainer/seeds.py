"""Seeds by hashing, so that every draw is a function of what it is for and not of what came before.

Because nothing depends on the history of a generator, a resumed run draws what the uninterrupted
one would have drawn, and no generator state needs saving.
"""

import hashlib
import random

import numpy as np
import torch


def derive(*parts: int | str) -> int:
    """A number of 63 bits from `parts`; hashed, not added, so that neighbours never meet."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_all(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - user code draws from the global generator
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seeds torch's global generators, cheaply enough for every forward pass.

    `torch.manual_seed` would note a stack trace for later each time, as long as CUDA is not in use.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
