"""A data loader wrapper that measures the time of the updates after a warm-up."""

import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")


class Stopwatch(Generic[Item]):
    """Iterable over batches that times the loop which consumes them.

    The stopwatch synchronizes with the device only when the timing starts and ends.
    """

    def __init__(self, batches: Iterable[Item], device: torch.device, warmup: int) -> None:
        """Create a stopwatch that starts with the first batch after the warm-up.

        Args:
            batches: The batches to pass on to the loop.
            device: The device on which the loop computes.
            warmup: Number of batches before the timing starts.
        """
        self._batches = batches
        self._device = device
        self._warmup = warmup
        self.seconds = 0.0
        """Seconds from the first timed batch to the end of the work on the last one."""
        self.waited = 0.0
        """Part of `seconds` in which the loop waited for batches."""

    def __iter__(self) -> Iterator[Item]:
        """Yield every batch once."""
        stream = iter(self._batches)
        for index in range(self._warmup):
            try:
                yield next(stream)
            except StopIteration:
                raise ValueError(
                    f"a warm-up of {self._warmup} batches needs more than the {index} available"
                ) from None
        self._synchronize()
        start = time.perf_counter()
        while True:
            requested = time.perf_counter()
            batch = next(stream, None)
            self.waited += time.perf_counter() - requested
            if batch is None:
                break
            yield batch
        self._synchronize()
        self.seconds = time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
