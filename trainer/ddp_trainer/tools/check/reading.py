"""Read samples, and raise errors that name the sample."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, cast

from ddp_trainer.data.loader import fetch
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import Data, is_indexed


def read_samples(data: Data, name: str, seed: int, limit: int) -> Iterator[tuple[int, Any]]:
    """Yield each sample with its index.

    Args:
        data: Training or evaluation data.
        name: Name of the data set in error messages.
        seed: Seed of the run.
        limit: Maximum number of samples. They are spread evenly over indexed data.

    Raises:
        InputError: If a sample cannot be read.
    """
    if not is_indexed(data):
        seed_all(derive_seed(seed, "check"))
        yield from islice(enumerate(cast("Iterable[Any]", data)), limit)
        return
    size = len(data)
    count = min(size, limit)
    for index in (size * number // count for number in range(count)):
        seed_all(derive_seed(seed, "check", index))
        yield index, run_at(f"{name}[{index}]", partial(data.__getitem__, index))


def collate_input(data: Data, samples: list[tuple[int, Any]]) -> Any:
    """Convert samples that were read one by one to the argument that `collate` takes."""
    if is_indexed(data) and hasattr(data, "__getitems__"):
        return fetch(data, [index for index, _ in samples])
    return [sample for _, sample in samples]


def first_samples(data: Iterable[Any], count: int) -> list[Any]:
    """Return the first samples of the first pass over data without an index."""
    if set_epoch := getattr(data, "set_epoch", None):
        set_epoch(0)
    return list(islice(data, count))


def is_read_once(data: Data) -> bool:
    """Return whether the data are an iterator, such as a generator, which allows only one pass."""
    return not is_indexed(data) and iter(cast("Iterable[Any]", data)) is data


def run_at(place: str, function: Callable[[], Any]) -> Any:
    """Call a function. If it fails, raise an InputError that names the place."""
    try:
        return function()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"check: {place}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return the class and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
