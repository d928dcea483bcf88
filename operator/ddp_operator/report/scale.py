"""Scales of charts: round ticks, and the texts of numbers and durations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_SECONDS = (
    *(1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
"""Permitted distances between two ticks of a time axis, in seconds."""
_DECADES_OF_LOG = 2.0
"""Minimum number of decades of positive values for which an axis is logarithmic."""
_MOST_TICKS = 50


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale from values to positions between 0 and 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(values: Sequence[float], count: int, *, from_zero: bool = False) -> Scale:
    """Return a linear scale around the values, with about `count` round ticks."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        margin = abs(low) / 10 or 1.0
        low, high = (low, high + margin) if from_zero else (low - margin, high + margin)
    step = _round_step((high - low) / max(1, count))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(n * step for n in range(first, min(last, first + _MOST_TICKS) + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def loss_scale(values: Sequence[float], count: int) -> Scale:
    """Return a logarithmic scale for positive values over many decades, else a linear scale."""
    if not values or min(values) <= 0:
        return linear(values, count)
    low, high = math.log10(min(values)), math.log10(max(values))
    if high - low < _DECADES_OF_LOG:
        return linear(values, count, from_zero=min(values) < max(values) / 2)
    first, last = math.floor(low), math.ceil(high)
    every = max(1, math.ceil((last - first) / max(2, count)))
    ticks = tuple(10.0**n for n in range(first, last + 1, every))
    return Scale(10.0**first, 10.0**last, ticks, logarithmic=True)


def elapsed(seconds: float, count: int) -> Scale:
    """Return the scale of a time axis from 0, with at most `count` round ticks."""
    seconds = max(seconds, 1e-3)
    enough = (step for step in _SECONDS if seconds / step <= count)
    step = next(enough, _SECONDS[-1] * math.ceil(seconds / _SECONDS[-1] / count))
    ticks = tuple(n * step for n in range(int(seconds / step + 1e-9) + 1))
    return Scale(0.0, seconds, ticks)


def number_text(value: float) -> str:
    """Return a number with at most four significant digits."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e15:  # noqa: PLR2004
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.4g}"


def time_text(unix_seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _round_step(least: float) -> float:
    """Return the smallest 1, 2, 2.5 or 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= least * (1 - 1e-9))
