"""Read samples twice with the same seeds, because training must be able to repeat them."""

from collections.abc import Callable, Iterator
from typing import Any

from ddp_trainer.data.fingerprint import encode
from ddp_trainer.data.loader import fetch
from ddp_trainer.errors import InputError
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import Data, is_indexed
from ddp_trainer.tools.check.reading import first_samples, is_read_once

READ_TWICE = 16
"""Number of samples that are read twice: spread over indexed data, or the first ones of a
stream."""


def unrepeatable_sample(data: Data, name: str) -> str | None:
    """Return a sentence if a sample differs between two reads with the same seeds, else None.

    Args:
        data: Training or evaluation data.
        name: Name of the data in the sentence.

    Raises:
        InputError: If reading a sample changes the data set, or if two passes over data without an
            index begin with different samples.
    """
    for place, read in _readers(data, name):
        seed = derive_seed("check", place)
        first = read(seed)
        encoded = encode(first, values=True)
        second = encode(read(seed), values=True)
        if encode(first, values=True) != encoded:
            raise InputError(
                f"task: reading {place} again changes the sample that was read before: it is part"
                " of the data set, so copy it before you change it"
            )
        if second == encoded:
            continue
        if not is_indexed(data):
            raise InputError(
                f"task: {place} is not the same when it is read twice with the same seeds, but all"
                " ranks and attempts must read the same samples: shuffle by the global generators,"
                " which the trainer seeds, or by the number that set_epoch receives"
            )
        return (
            f"{place} is not the same when it is read twice with the same seeds, so a resumed run"
            " gets other data: draw from the global generators of random, numpy or torch, which the"
            " trainer seeds for each sample, and do not change the data set"
        )
    return None


def random_sample(data: Data, name: str) -> str | None:
    """Return the place of the first sample that depends on the seed, or None.

    Args:
        data: Training or evaluation data.
        name: Name of the data set, with which the place begins.
    """
    for place, read in _readers(data, name):
        one, other = (encode(read(derive_seed("check", place, n)), values=True) for n in (0, 1))
        if one != other:
            return place
    return None


def _readers(data: Data, name: str) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Yield places of samples, each with a function that sets a seed and then reads the sample."""
    if not is_indexed(data):
        if not is_read_once(data):
            yield f"the beginning of {name}", lambda seed: _stream(data, seed)
        return
    size, count = len(data), min(len(data), READ_TWICE)
    for index in (size * number // count for number in range(count)):

        def read(seed: int, index: int = index) -> Any:
            seed_all(seed)
            return fetch(data, [index])

        yield f"{name}[{index}]", read


def _stream(data: Any, seed: int) -> list[Any]:
    seed_all(seed)
    return first_samples(data, READ_TWICE)
