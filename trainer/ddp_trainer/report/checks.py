"""Check the numbers that a script reports, and warn on standard error."""

import operator
import sys
from typing import Any

LARGEST = 2**53
"""Largest permitted number in a report. JSON readers keep larger integers only approximately."""


def whole(name: str, value: Any) -> int:
    """Return a number of updates as an integer.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If the value is negative or too large.
    """
    try:
        number = operator.index(value)
    except TypeError:
        sentence = f"report: {name} must be an integer, not {value!r}"
        raise TypeError(sentence) from None
    if not 0 <= number <= LARGEST:
        raise ValueError(f"report: {name} must be from 0 to 2**53, not {number}")
    return number


def warn(sentence: str) -> None:
    """Print a warning instead of raising an error, because a report must never end the script."""
    print(f"warning: report: {sentence}", file=sys.stderr, flush=True)
