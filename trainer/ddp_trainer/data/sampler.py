"""Choose the samples that each rank processes in each update.

The position of a run is one number: the samples that all ranks have consumed. The order of an epoch
depends only on the seed and the epoch. So a run resumes exactly in the middle of an epoch, at any
world size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from ddp_trainer.data.order import ORDER_VERSION, ComputedOrder, ListedOrder, order_of
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive_seed

T = TypeVar("T")
Order = range | ListedOrder | ComputedOrder


class Portion(NamedTuple, Generic[T]):
    """Samples of one micro-batch before they are read and collated."""

    items: list[T]
    """Indices of samples; for data without an index, the samples themselves."""
    weight: float
    """Weight of the loss: 1, or 0 for a placeholder, with which a rank without samples takes part
    in the reduction."""
    update_samples: int
    """Number of samples in the whole update, over all ranks."""
    last: bool
    """Whether this is the rank's last micro-batch in the update."""
    seed: int
    """Random seed for the preparation of the samples."""


@dataclass(frozen=True, slots=True)
class GlobalSampler:
    """Sampler that cuts each epoch into global batches, and each global batch into rank slices.

    Every sample occurs once per epoch. The last batch of an epoch has the remaining samples. The
    samples of a batch are assigned to the ranks in turn, so the shares of ranks differ by at most
    one. All ranks make the same number of updates.

    With `drop_last` no update uses the last batch of an epoch if it is incomplete. Positions count
    its samples as consumed. So the meaning of a position does not depend on the batch size or on
    `drop_last`.

    Raises:
        InputError: If an epoch would have no updates.
    """

    size: int
    """Number of samples in the data set."""
    global_batch: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    order_version: int = ORDER_VERSION
    """Version of the algorithm for orders. A run keeps the version with which it began."""

    def __post_init__(self) -> None:
        if self.drop_last and self.size < self.global_batch:
            raise InputError(
                f"config: data.drop_last requires at least one whole batch per epoch, but"
                f" global_batch is {self.global_batch} and train_data holds {self.size} samples"
            )

    def order(self, epoch: int) -> Order:
        """Return the order of one epoch. A slice of it is a list of indices."""
        if not self.shuffle:
            return range(self.size)
        return order_of(self.size, derive_seed(self.seed, "order", epoch), self.order_version)

    def epoch_of(self, samples: int) -> int:
        """Return the epoch of the last consumed sample, from 1; 0 before the first sample."""
        return -(-samples // self.size)

    def ends_epoch(self, samples: int) -> bool:
        """Return whether a position is the end of an epoch."""
        return samples % self.size == 0

    def after(self, start: int, samples: int) -> int:
        """Return the position after an update.

        Args:
            start: Position before the update.
            samples: Number of samples in the update.
        """
        return self._skip_dropped(self._skip_dropped(start) + samples)

    def updates_between(self, start: int, end: int) -> int:
        """Return the number of updates from one position to another position, or just beyond it."""
        (first, offset), (last, rest) = divmod(start, self.size), divmod(end, self.size)
        if first == last:
            return self._batches(offset, rest)
        whole = (last - first - 1) * self._batches(0, self.size)
        return self._batches(offset, self.size) + whole + self._batches(0, rest)

    def end_after(self, updates: int) -> int:
        """Return the position after the given number of updates from the beginning."""
        epochs, batches = divmod(updates, self._batches(0, self.size))
        return epochs * self.size + batches * self.global_batch

    def portions(self, start: int, updates: int, rank_slice: "RankSlice") -> Iterator[Portion[int]]:
        """Yield one rank's portions, starting at a position.

        Args:
            start: Number of samples that all ranks have consumed so far.
            updates: Number of updates to make.
            rank_slice: Slice of the rank.
        """
        epoch, offset = divmod(start, self.size)
        while updates > 0:
            order = self.order(epoch)
            end = self.size - self.global_batch + 1 if self.drop_last else self.size
            begins = range(offset, end, self.global_batch)[:updates]
            for begin in begins:
                batch = list(order[begin : begin + self.global_batch])
                seed = (self.seed, "samples", epoch, begin, rank_slice.rank)
                yield from rank_slice.portions(batch, seed)
            epoch, offset, updates = epoch + 1, 0, updates - len(begins)

    def _batches(self, offset: int, end: int) -> int:
        """Return the number of updates between two offsets in an epoch."""
        batches = -(-(end - offset) // self.global_batch)
        complete = (self.size - offset) // self.global_batch
        return min(batches, complete) if self.drop_last else batches

    def _skip_dropped(self, position: int) -> int:
        """Return the end of the epoch if its remaining samples are dropped, else the position."""
        left = self.size - position % self.size
        return position + left if self.drop_last and left < self.global_batch else position


@dataclass(frozen=True, slots=True)
class RankSlice:
    """One rank's slice of each global batch."""

    rank: int
    world_size: int
    micro_batch: int
    """Maximum number of samples in one micro-batch."""

    def portions(self, batch: list[T], seed: tuple[int | str, ...]) -> Iterator[Portion[T]]:
        """Yield this rank's share of a batch, one portion per micro-batch.

        Shares differ by at most one sample, and so do the portions of a rank. All ranks get the
        same number of portions, because a strategy may gather weights in each forward pass. A rank
        with fewer samples than portions ends with placeholders of weight 0.

        Args:
            batch: Samples of all ranks, or their indices.
            seed: Base from which the portions' seeds are derived.
        """
        share = batch[self.rank :: self.world_size]
        passes = passes_of(len(batch), self.world_size, self.micro_batch)
        begin = 0
        for number, size in enumerate(divided(len(share), passes)):
            items, weight = share[begin : begin + size], 1.0
            if not items:
                items, weight = batch[:1], 0.0
            own_seed = derive_seed(*seed, number * self.micro_batch)
            yield Portion(items, weight, len(batch), number + 1 == passes, own_seed)
            begin += size


def passes_of(samples: int, world_size: int, micro_batch: int) -> int:
    """Return the forward passes of each rank in one update.

    Args:
        samples: Samples of the update, over all ranks.
        world_size: Number of ranks.
        micro_batch: Maximum number of samples in one forward pass of a rank.
    """
    return -(-samples // (world_size * micro_batch))


def divided(samples: int, parts: int) -> list[int]:
    """Return the sizes of equal parts that differ by at most one, the larger ones first."""
    size, larger = divmod(samples, parts)
    return [size + (number < larger) for number in range(parts)]


def shortest_pass(
    samples: int, world_size: int, micro_batch: int, *, together: bool = False
) -> int:
    """Return the smallest number of samples in any forward pass of one update.

    Args:
        samples: Samples of the update, over all ranks.
        world_size: Number of ranks.
        micro_batch: Maximum number of samples in one forward pass of a rank.
        together: Whether to count the samples of all ranks together in a pass.
    """
    passes = passes_of(samples, world_size, micro_batch)
    ranks = [divided(share, passes) for share in divided(samples, world_size)]
    sizes = map(sum, zip(*ranks, strict=True)) if together else chain.from_iterable(ranks)
    return min(size for size in sizes if size)


def evaluation_portions(size: int, rank_slice: RankSlice) -> list[Portion[int]]:
    """Return one rank's portions of the evaluation data, with each sample exactly once.

    Args:
        size: Samples in the data set.
        rank_slice: Slice of the rank.
    """
    return list(rank_slice.portions(list(range(size)), ("evaluation", rank_slice.rank)))


class MicroBatch(NamedTuple):
    """Samples of one forward pass on one rank, collated to a batch."""

    batch: Any
    weight: float
    """Weight of the loss: 1, or 0 for a placeholder."""
    update_samples: int
    """Number of samples in the whole update, over all ranks."""
    last: bool
    """Whether this is the rank's last micro-batch in the update."""

    @classmethod
    def of(cls, portion: Portion[Any], batch: Any) -> "MicroBatch":
        """Create a micro-batch from a portion and its collated samples."""
        return cls(batch, portion.weight, portion.update_samples, portion.last)
