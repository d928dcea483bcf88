"""Sample data without index and length, which can only be read from the beginning.

Every rank reads the whole stream and takes its slice of each global batch, as with indexed data. So
each sample is used exactly once per pass, with any number of ranks and worker processes. A run
resumes by skipping the samples that it has consumed. The cost is that each rank, and each of its
workers, reads the whole stream. All of them must see the same samples in the same order, so a
stream that shuffles needs its own random generator.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from ddp_trainer.data.order import ORDER_VERSION
from ddp_trainer.data.sampler import MicroBatch, Portion, RankSlice
from ddp_trainer.data.unreadable import Unreadable
from ddp_trainer.errors import InputError, ReportedError
from ddp_trainer.seeds import derive_seed, seed_all


@dataclass(frozen=True, slots=True)
class StreamSampler:
    """Sampler that cuts a stream into global batches, pass after pass."""

    global_batch: int
    seed: int
    size: None = None
    """Number of samples in the data set, which is unknown."""
    order_version: int = ORDER_VERSION
    """Version of the algorithm for orders, which is not used: the stream itself defines the
    order."""

    def epoch_of(self, samples: int) -> None:  # noqa: ARG002 - same signature as GlobalSampler
        """Return None, because only a reader of the stream sees the end of a pass."""
        return

    def ends_epoch(self, samples: int) -> bool:  # noqa: ARG002
        """Return False, because the end of a pass is unknown."""
        return False

    def after(self, start: int, samples: int) -> int:
        """Return the position after an update with the given number of samples."""
        return start + samples

    def portions(
        self, data: Iterable[Any], start: int, updates: int, rank_slice: RankSlice
    ) -> Iterator[Portion[Any]]:
        """Yield one rank's portions, starting at a position.

        Args:
            data: Iterable that yields the same samples in the same order each time. If it has a
                method `set_epoch(number)`, this method is called before each pass.
            start: Number of samples that all ranks have consumed so far. They are read and dropped.
            updates: Number of updates to make.
            rank_slice: Slice of the rank.

        Raises:
            InputError: If a pass yields no samples.
        """
        epoch, left = 0, start
        while updates > 0:
            samples = self._one_pass(data, epoch)
            skipped = sum(1 for _ in islice(samples, left))
            left, begin = left - skipped, skipped
            while updates > 0 and (batch := list(islice(samples, self.global_batch))):
                seed = (self.seed, "samples", epoch, begin, rank_slice.rank)
                yield from rank_slice.portions(batch, seed)
                begin, updates = begin + len(batch), updates - 1
            if begin == 0:
                raise InputError('task: "train_data" holds no samples')
            epoch += 1

    def _one_pass(self, data: Iterable[Any], epoch: int) -> Iterator[Any]:
        seed_all(derive_seed(self.seed, "stream", epoch))
        if set_epoch := getattr(data, "set_epoch", None):
            set_epoch(epoch)
        return iter(data)


@dataclass(frozen=True, slots=True)
class MicroBatchStream(IterableDataset[MicroBatch | Unreadable]):
    """Micro-batches of a stream. Each of n worker processes prepares every n-th micro-batch.

    A torch loader takes one item from each worker in turn, so the micro-batches stay in order.
    """

    portions: Callable[[], Iterable[Portion[Any]]]
    collate: Callable[[Any], Any]

    def __iter__(self) -> Iterator[MicroBatch | Unreadable]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        with _as_only_reader():
            portions = islice(self.portions(), number, None, workers)
            try:
                yield from map(self._micro_batch, portions)
            except ReportedError:
                raise
            except Exception as error:  # noqa: BLE001 - the rank raises it
                yield Unreadable.of(error, "the next samples of the stream")

    def _micro_batch(self, portion: Portion[Any]) -> MicroBatch:
        seed_all(portion.seed)
        return MicroBatch.of(portion, self.collate(portion.items))


@contextmanager
def _as_only_reader() -> Iterator[None]:
    """Hide from the data that this process is one of several workers.

    Each worker must read all samples. But many streams read only a part if `get_worker_info`
    reports several workers, as torch's documentation recommends.
    """
    own = torch_worker._worker_info  # noqa: SLF001 - there is no public way to hide it
    torch_worker._worker_info = None  # noqa: SLF001
    try:
        yield
    finally:
        torch_worker._worker_info = own  # noqa: SLF001


def evaluation_stream(data: Iterable[Any], rank_slice: RankSlice) -> Iterator[Portion[Any]]:
    """Yield one rank's portions of the evaluation data, with each sample exactly once.

    A rank with an empty share gets one sample with weight 0, so that every rank knows the names of
    all metrics.

    Args:
        data: Iterable of samples, with the same rules as for training.
        rank_slice: Slice of the rank.

    Raises:
        InputError: If the pass yields no samples.
    """
    samples, begin = iter(data), 0
    batch_size = rank_slice.micro_batch * rank_slice.world_size
    while batch := list(islice(samples, batch_size)):
        yield from rank_slice.portions(batch, ("evaluation", begin, rank_slice.rank))
        begin += len(batch)
    if begin == 0:
        raise InputError('task: "eval_data" holds no samples')
