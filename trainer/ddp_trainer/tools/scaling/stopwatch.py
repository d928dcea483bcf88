"""The time of steps, taken where a loop asks for its next batch."""

import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")


class Stopwatch(Generic[Item]):
    """Passes batches on, and times the steps after a warm-up.

    The device is waited for where the timing begins and ends, and nowhere between.
    """

    def __init__(self, batches: Iterable[Item], device: torch.device, warmup: int) -> None:
        """Starts with the first batch after the warm-up.

        Args:
            batches: What the loop goes through.
            device: Where it computes.
            warmup: Batches that are not timed.
        """
        self._batches = batches
        self._device = device
        self._warmup = warmup
        self.seconds = 0.0
        """From the first timed batch to the end of the last one's work."""
        self.waited = 0.0
        """Of these, how long the loop waited for batches."""

    def __iter__(self) -> Iterator[Item]:
        """Every batch, each once."""
        stream = iter(self._batches)
        for index in range(self._warmup):
            try:
                yield next(stream)
            except StopIteration:
                raise ValueError(f"only {index} batches for a warm-up of {self._warmup}") from None
        self._wait_for_device()
        begun = time.perf_counter()
        while True:
            asked = time.perf_counter()
            batch = next(stream, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                break
            yield batch
        self._wait_for_device()
        self.seconds = time.perf_counter() - begun

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
