"""From step times to ratios that can be trusted, or to the word that they cannot.

A round holds a block of steps of each system, and the hand-written loop twice. On a CPU the systems
take turns of a few steps, so that they meet the same machine: what changes slowly (heat,
neighbours) cancels. The first step of a turn is not counted, because it finds the caches full of
the others' code and data. A system's ratio by p10 or mean is that of its steps of all rounds to
those of the two minimal loops; by median, it is the median of its step's to theirs of the same
place in the same turn. The two minimal loops' own ratio is the control: its confidence interval,
over rounds, is the noise of the measurement. Noise never widens a goal. It decides whether there is
a verdict: rounds are added until it is small, and if it stays large there is none.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

CONTROL, CONTROL_AGAIN = "minimal", "minimal again"
MAX_NOISE = 0.01
"""Largest deviation from 1 of the control's interval with which there is a verdict."""
RESAMPLES = 500


@dataclass(frozen=True)
class Block:
    """Step times of one system in one round, in seconds."""

    round: int
    system: str
    steps: list[float]


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "p10": lambda steps: float(np.quantile(steps, 0.1)),
    "median": lambda steps: float(np.median(steps)),
    "mean": lambda steps: float(np.mean(steps)),
}


@dataclass
class Findings:
    """All that was seen of one workload."""

    workload: str
    rounds: int = 0
    blocks: list[Block] = field(default_factory=list)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    """Largest difference of a weight to the minimal loop's, by system."""

    def time(self, system: str, statistic: str, rounds: Sequence[int] | None = None) -> float:
        """Seconds per step over all rounds, or over some, each as often as it is named."""
        return STATISTICS[statistic](self._steps(system, rounds))

    def ratio(self, system: str, statistic: str, rounds: Sequence[int] | None = None) -> float:
        """To the mean of the two minimal loops; for the second one, to the first."""
        paired = statistic == "median"
        first, second, mine = (
            self._steps(name, rounds) if paired else np.array(self.time(name, statistic, rounds))
            for name in (CONTROL, CONTROL_AGAIN, system)
        )
        if system == CONTROL_AGAIN:
            return float(np.median(second / first))
        return float(np.median(mine / np.sqrt(first * second)))

    def _steps(self, system: str, rounds: Sequence[int] | None) -> np.ndarray:
        blocks = {b.round: b.steps for b in self.blocks if b.system == system}
        chosen = blocks.keys() if rounds is None else rounds
        return np.concatenate([blocks[number] for number in chosen])

    def noise(self, statistic: str) -> float:
        """Farthest that the control's ratio may lie from 1, with 95 % confidence.

        By bootstrap (Efron 1979) over rounds, percentile method.
        """
        draw = random.Random(0)  # noqa: S311 - resampling
        known = range(self.rounds)
        ratios = sorted(
            self.ratio(CONTROL_AGAIN, statistic, draw.choices(known, k=self.rounds))
            for _ in range(RESAMPLES)
        )
        low, high = ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1]
        return max(abs(low - 1), abs(high - 1))


def enough(found: Findings) -> bool:
    """Whether the noise is small enough for a verdict."""
    return all(found.noise(statistic) <= MAX_NOISE for statistic in ("p10", "median"))
