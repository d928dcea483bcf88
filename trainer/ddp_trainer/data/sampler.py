"""Which samples each rank takes at each update.

The position of a run is one number: global samples consumed. The order of an epoch is a function of
(seed, epoch) alone. So a run resumes exactly in the middle of an epoch, at any world size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from ddp_trainer.seeds import derive

T = TypeVar("T")


class Portion(NamedTuple, Generic[T]):
    """One rank's part of one forward pass."""

    items: list[T]
    """Indices of samples; the samples themselves where data can only be read in order."""
    weight: float
    """1, or 0 for a stand-in: a rank without samples still has to take part in the reduction."""
    update_samples: int
    """Samples of the whole update, over all ranks."""
    last: bool
    """Whether this is the rank's last forward pass of the update."""
    seed: int
    """Seed of the randomness in preparing the samples."""


@dataclass(frozen=True, slots=True)
class GlobalSampler:
    """Walks the epochs in global batches and cuts each rank's share out of them.

    Every sample comes once per epoch. The last batch of an epoch holds what is left: its samples
    are dealt out one by one, so shares differ by at most one, and all ranks make the same number of
    updates.
    """

    size: int
    """Samples in the data set."""
    global_batch: int
    seed: int
    shuffle: bool = True

    def order(self, epoch: int) -> list[int]:
        """All indices, in the order of one epoch."""
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
        order: list[int] = torch.randperm(self.size, generator=generator).tolist()
        return order

    def epoch_of(self, samples: int) -> int:
        """Number of the epoch that the newest sample belonged to, from 1; 0 before the first."""
        return -(-samples // self.size)

    def ends_epoch(self, samples: int) -> bool:
        """Whether a position is the end of an epoch."""
        return samples % self.size == 0

    def updates_between(self, start: int, end: int) -> int:
        """Updates from position `start` up to position `end`, both in global samples consumed."""
        (first, offset), (last, rest) = divmod(start, self.size), divmod(end, self.size)
        if first == last:
            return self._batches(rest - offset)
        whole = (last - first - 1) * self._batches(self.size)
        return self._batches(self.size - offset) + whole + self._batches(rest)

    def end_after(self, updates: int) -> int:
        """Position after so many updates from the beginning."""
        epochs, batches = divmod(updates, self._batches(self.size))
        return epochs * self.size + batches * self.global_batch

    def portions(self, start: int, updates: int, taker: "Taker") -> Iterator[Portion[int]]:
        """One rank's work from a position on.

        Args:
            start: Global samples consumed so far.
            updates: Number of updates to make.
            taker: The rank.
        """
        epoch, offset = divmod(start, self.size)
        while updates > 0:
            order = self.order(epoch)
            begins = range(offset, self.size, self.global_batch)[:updates]
            for begin in begins:
                batch = order[begin : begin + self.global_batch]
                yield from taker.cut(batch, (self.seed, "samples", epoch, begin, taker.rank))
            epoch, offset, updates = epoch + 1, 0, updates - len(begins)

    def _batches(self, samples: int) -> int:
        return -(-samples // self.global_batch)


@dataclass(frozen=True, slots=True)
class Taker:
    """A rank that takes its share of each batch."""

    rank: int
    world_size: int
    micro: int
    """Most samples in one forward pass."""

    def cut(self, batch: list[T], seed: tuple[int | str, ...]) -> Iterator[Portion[T]]:
        """This rank's share of a batch, in forward passes.

        All ranks make equally many, because a strategy may gather weights in each: a rank whose
        share is shorter ends with stand-ins of weight 0.

        Args:
            batch: All ranks' samples, or their indices.
            seed: What the samples' randomness is derived from.
        """
        share = batch[self.rank :: self.world_size]
        longest = -(-len(batch) // self.world_size)
        for begin in range(0, longest, self.micro):
            end = begin + self.micro
            indices, weight = share[begin:end], 1.0
            if not indices:
                indices, weight = batch[:1], 0.0
            yield Portion(indices, weight, len(batch), end >= longest, derive(*seed, begin))


def evaluation_portions(size: int, taker: Taker) -> list[Portion[int]]:
    """One rank's work for one pass over evaluation data: no sample twice, none left out.

    Args:
        size: Samples in the data set.
        taker: The rank.
    """
    return list(taker.cut(list(range(size)), ("evaluation", taker.rank)))


class Micro(NamedTuple):
    """One rank's batch of one forward pass."""

    batch: Any
    weight: float
    """1, or 0 for a stand-in."""
    update_samples: int
    """Samples of the whole update, over all ranks."""
    last: bool
    """Whether this is the rank's last forward pass of the update."""

    @classmethod
    def of(cls, portion: Portion[Any], batch: Any) -> "Micro":
        """The batch of a portion."""
        return cls(batch, portion.weight, portion.update_samples, portion.last)
