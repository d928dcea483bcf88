"""Compute the order of the samples in one epoch from the seed.

The order of a large data set is computed in blocks, so no rank ever holds an array of the epoch.
The algorithm is a Feistel network on pairs of numbers (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"). Each round adds a hash of one number to the other. A round can be
undone, so different positions have different samples. There are slightly more pairs than samples. A
pair without a sample goes through the network again until it has one.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ddp_trainer.seeds import derive_seed

ORDER_VERSION = 2
"""Version of the algorithm for orders, which checkpoints store. In version 1 every order is a
list."""
MOST_LISTED = 1 << 20
"""Maximum number of samples for which the order is stored as a list, which needs 8 MB. All orders
of a list are equally likely."""
BLOCK = 8192
"""Number of positions that are computed together, so that they share the cost of NumPy calls."""
ROUNDS = 6
"""Number of rounds of the network. With ideal hashes three would suffice (Luby and Rackoff
1988)."""

Numbers = NDArray[np.uint64]

_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_HALF = np.uint64(32)


class ListedOrder:
    """Random order that is drawn as a whole and stored as a list."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._order = torch.randperm(size, generator=generator).numpy()

    def __getitem__(self, positions: slice) -> list[int]:
        """Return the samples at the given positions."""
        found: list[int] = self._order[positions].tolist()
        return found


class ComputedOrder:
    """A pseudo-random order, computed in blocks of positions."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        # Pairs (high, low) with high < rows and low < columns stand for high * columns + low.
        rows = math.isqrt(size - 1) + 1
        self._columns = np.uint64(-(-size // rows))
        self._moduli = (np.uint64(rows), self._columns)
        self._keys = [np.uint64(derive_seed(seed, number)) for number in range(ROUNDS)]
        self._begin = 0
        self._block: list[int] = []

    def __getitem__(self, positions: slice) -> list[int]:
        """Return the samples at the given consecutive positions."""
        begin, end, _ = positions.indices(self._size)
        if not self._begin <= begin <= end <= self._begin + len(self._block):
            last = min(self._size, max(end, begin + BLOCK))
            self._block = self._permuted(np.arange(begin, last, dtype=np.uint64)).tolist()
            self._begin = begin
        return self._block[begin - self._begin : end - self._begin]

    def _permuted(self, positions: Numbers) -> Numbers:
        samples = self._encrypted(positions)
        while (beyond := np.flatnonzero(samples >= self._size)).size:
            samples[beyond] = self._encrypted(samples[beyond])
        return samples

    def _encrypted(self, numbers: Numbers) -> Numbers:
        """Apply the network once, which permutes all numbers below rows * columns."""
        pair = list(np.divmod(numbers, self._columns))
        for number, key in enumerate(self._keys):
            side = number % 2
            modulus = self._moduli[side]
            pair[side] += _hashed(pair[1 - side], key, modulus)
            np.subtract(pair[side], modulus, out=pair[side], where=pair[side] >= modulus)
        high, low = pair
        whole: Numbers = high * self._columns + low
        return whole


def order_of(size: int, seed: int, version: int) -> ListedOrder | ComputedOrder:
    """Return the order of an epoch.

    Args:
        size: Samples in the data set.
        seed: Seed of the epoch.
        version: Version of the algorithm that this run uses.
    """
    listed = size <= MOST_LISTED or version < ORDER_VERSION
    return ListedOrder(size, seed) if listed else ComputedOrder(size, seed)


def _hashed(numbers: Numbers, key: np.uint64, modulus: np.uint64) -> Numbers:
    """Return a hash of each number, below a modulus of at most 32 bits."""
    mixed = numbers ^ key
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _HALF
    mixed *= _FACTORS[1]
    mixed >>= _HALF
    mixed *= modulus
    mixed >>= _HALF
    return mixed
