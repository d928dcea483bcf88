"""Data that can only be read from the beginning: no index, no length.

Every rank reads the whole stream and takes its share of each global batch, as with data that has an
index. So no sample is trained on twice or left out, at any number of ranks and worker processes,
and a run resumes by reading past the samples that it has consumed. What that costs is reading: each
rank, and each of its workers, reads everything. All of them must see the same samples in the same
order, so a stream that shuffles needs a generator of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ddp_trainer.data.sampler import Micro, Portion, Taker
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive, seed_all


@dataclass(frozen=True, slots=True)
class StreamSampler:
    """Cuts a stream into global batches, pass after pass."""

    global_batch: int
    seed: int
    size: None = None
    """Samples in the data set: unknown."""

    def epoch_of(self, samples: int) -> None:  # noqa: ARG002 - as the sampler of indices
        """Unknown: only who reads the stream sees its end."""
        return

    def ends_epoch(self, samples: int) -> bool:  # noqa: ARG002
        """Never, as far as one can know."""
        return False

    def portions(
        self, data: Iterable[Any], start: int, updates: int, taker: Taker
    ) -> Iterator[Portion[Any]]:
        """One rank's work from a position on.

        Args:
            data: Gives the same samples in the same order each time that it is iterated;
                `set_epoch(number)` is called first if it has that.
            start: Global samples consumed so far: they are read and dropped.
            updates: Number of updates to make.
            taker: The rank.

        Raises:
            InputError: If a pass gives no samples.
        """
        epoch, left = 0, start
        while updates > 0:
            samples = self._one_pass(data, epoch)
            skipped = sum(1 for _ in islice(samples, left))
            left, begin = left - skipped, skipped
            while updates > 0 and (batch := list(islice(samples, self.global_batch))):
                yield from taker.cut(batch, (self.seed, "samples", epoch, begin, taker.rank))
                begin, updates = begin + len(batch), updates - 1
            if begin == 0:
                raise InputError('task: "train_data" holds no samples')
            epoch += 1

    def _one_pass(self, data: Iterable[Any], epoch: int) -> Iterator[Any]:
        seed_all(derive(self.seed, "stream", epoch))
        if set_epoch := getattr(data, "set_epoch", None):
            set_epoch(epoch)
        return iter(data)


@dataclass(frozen=True, slots=True)
class StreamWork(IterableDataset[Micro]):
    """Batches of portions that are read in order; each worker process makes every n-th of them.

    A loader asks its workers in turn, so the batches come in their order.
    """

    portions: Callable[[], Iterable[Portion[Any]]]
    collate: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Micro]:
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for portion in islice(self.portions(), mine, None, workers):
            seed_all(portion.seed)
            yield Micro.of(portion, self.collate(portion.items))


def evaluation_stream(data: Iterable[Any], taker: Taker) -> Iterator[Portion[Any]]:
    """One rank's work for one pass over evaluation data: no sample twice, none left out.

    A rank whose share is empty gets one sample of weight 0, so that all know the metrics' names.

    Args:
        data: As for training.
        taker: The rank.

    Raises:
        InputError: If the pass gives no samples.
    """
    samples, begin = iter(data), 0
    batch_size = taker.micro * taker.world_size
    while batch := list(islice(samples, batch_size)):
        yield from taker.cut(batch, ("evaluation", begin, taker.rank))
        begin += len(batch)
    if begin == 0:
        raise InputError('task: "eval_data" holds no samples')
