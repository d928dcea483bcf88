"""From step times to ratios that can be trusted, or to the word that they cannot.

A round holds one block of steps of each system, and the hand-written loop twice. A system's ratio
is the median over rounds of its block's time to that of the two minimal blocks of the same round,
so what changes slowly (heat, neighbours) cancels. The two minimal blocks' own ratio is the control:
its confidence interval is the noise of the measurement. Noise never widens a goal. It decides
whether there is a verdict: rounds are added until it is small, and if it stays large there is none.
"""

import math
import random
import statistics
from dataclasses import dataclass, field

CONTROL, CONTROL_AGAIN = "minimal", "minimal again"
MAX_NOISE = 0.01
"""Largest deviation from 1 of the control's interval with which there is a verdict."""
RESAMPLES = 500


@dataclass(frozen=True)
class Block:
    """Step times of one system in one round, in seconds."""

    round: int
    system: str
    p10: float
    median: float
    mean: float

    @classmethod
    def of(cls, number: int, system: str, steps: list[float]) -> "Block":
        """Sums up the steps of a block."""
        tenths = statistics.quantiles(steps, n=10)
        return cls(number, system, tenths[0], statistics.median(steps), statistics.fmean(steps))


STATISTICS = ("p10", "median", "mean")


@dataclass
class Findings:
    """All that was seen of one workload."""

    workload: str
    rounds: int = 0
    blocks: list[Block] = field(default_factory=list)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    """Largest difference of a weight to the minimal loop's, by system."""

    def times(self, system: str, statistic: str) -> list[float]:
        """One number per round."""
        return [getattr(b, statistic) for b in self.blocks if b.system == system]

    def ratios(self, system: str, statistic: str) -> list[float]:
        """Per round, to the mean of the two minimal blocks; for the second one, to the first."""
        first, second = self.times(CONTROL, statistic), self.times(CONTROL_AGAIN, statistic)
        mine = self.times(system, statistic)
        if system == CONTROL_AGAIN:
            return [b / a for a, b in zip(first, mine, strict=True)]
        return [c / math.sqrt(a * b) for a, b, c in zip(first, second, mine, strict=True)]

    def ratio(self, system: str, statistic: str) -> float:
        """The median over rounds."""
        return statistics.median(self.ratios(system, statistic))

    def noise(self, statistic: str) -> float:
        """Farthest that the control's ratio may lie from 1, with 95 % confidence."""
        low, high = interval(self.ratios(CONTROL_AGAIN, statistic))
        return max(abs(low - 1), abs(high - 1))


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median (Efron 1979), percentile method."""
    draw = random.Random(0)  # noqa: S311 - resampling
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def enough(found: Findings) -> bool:
    """Whether the noise is small enough for a verdict."""
    return all(found.noise(statistic) <= MAX_NOISE for statistic in ("p10", "median"))
