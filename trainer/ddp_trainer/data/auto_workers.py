"""Choose the number of worker processes from the time that the preparation of a batch takes."""

import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ddp_trainer.data.prefetch import tensors_in
from ddp_trainer.task import is_indexed

SLOW_SECONDS = 0.005
"""Minimum seconds to prepare a batch for which worker processes are started.

A GPU needs about this time for an update of a small model.
"""
LARGEST_COPY = 256 << 20
"""Maximum pickled size, in bytes, of a data set that is copied to each worker process."""


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """Number of worker processes per rank, and the reason for it."""

    workers: int
    reason: str

    def sentence(self) -> str:
        """Return the number and the reason as one sentence."""
        return f"data.workers auto: {self.workers} worker processes per rank, because {self.reason}"


def choose_workers(
    data: Any,
    prepare: Callable[[], object],
    spare: int,
    clock: Callable[[], float] = time.monotonic,
    *,
    shipped: Iterable[Any] = (),
) -> WorkerChoice:
    """Choose the number of worker processes for a rank whose device is a GPU.

    Args:
        data: Training data.
        prepare: Function that prepares the first batch in this process.
        spare: CPUs that the rank can spare.
        clock: Function that returns the time in seconds.
        shipped: All other objects that each worker process receives.
    """
    if not spare:
        return WorkerChoice(0, "the container has no CPUs to spare")
    if not is_indexed(data):
        return WorkerChoice(0, "each of them would read the whole stream")
    seconds = []
    try:
        for _ in range(2):  # The first time includes imports and cold caches.
            start = clock()
            prepare()
            seconds.append(clock() - start)
    except Exception:  # noqa: BLE001 - the first update fails in the same way, and reports it
        return WorkerChoice(0, "the first batch cannot be prepared")
    duration = f"a batch takes {1000 * min(seconds):.3g} ms to prepare"
    if min(seconds) < SLOW_SECONDS:
        return WorkerChoice(0, f"{duration}, less than {1000 * SLOW_SECONDS:.0f} ms")
    obstacle = _obstacle((data, *shipped))
    return WorkerChoice(0, obstacle) if obstacle else WorkerChoice(spare, duration)


class _TooLargeError(Exception):
    pass


class _Counter:
    """File object that only counts the written bytes, up to a limit."""

    def __init__(self) -> None:
        self._written = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._written += size
        if self._written > LARGEST_COPY:
            raise _TooLargeError
        return size


def _obstacle(objects: tuple[Any, ...]) -> str | None:
    """Return the reason why the objects cannot be sent to worker processes, or None."""
    too_large = f"each of them would copy more than {LARGEST_COPY >> 20} MiB of data"
    # torch copies a tensor before it writes it, so look for large ones first.
    tensors = tensors_in([getattr(one, "__dict__", None) for one in objects])
    if sum(tensor.nbytes for tensor in tensors) > LARGEST_COPY:
        return too_large
    try:
        pickle.Pickler(_Counter(), protocol=pickle.HIGHEST_PROTOCOL).dump(objects)
    except _TooLargeError:
        return too_large
    except Exception as error:  # noqa: BLE001 - pickle raises any error of the data
        first = (str(error).splitlines() or [""])[0]
        return f"the data cannot be pickled: {type(error).__name__}: {first}"
    return None
