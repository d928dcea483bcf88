"""From step times to ratios with their intervals, and to the goals that these decide.

A round holds a block of steps of each system, and the hand-written loop twice. On a CPU the systems
take turns of a few steps, so that they meet the same machine: what changes slowly (heat,
neighbours) cancels. The first step of a turn is not counted, because it finds the caches full of
the others' code and data.

Each round gives two ratios of two systems: that of the p10 of their steps, and the median of the
ratios of their steps of the same place in the same turn. What is told is the geometric mean of the
rounds' ratios: that of two equal systems is 1 on average however skewed the times are, and that of
A to B is one divided by that of B to A. Its interval comes from the rounds too (bootstrap,
percentile method; Efron 1979).

A goal is met or missed when the whole interval is on one side of its limit; until then it is open
and rounds are added. The intervals are wide (99 %) because they are looked at after each round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

CONTROL, CONTROL_AGAIN, OURS = "minimal", "minimal again", "ours"
MAX_RATIO = 1.02
"""Of ours to the hand-written loop."""
QUANTILES = {"p10": 0.1, "median": 0.5}
"""What is judged."""
CONFIDENCE = 0.99
MIN_ROUNDS = 10
"""With which an interval is trusted."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Block:
    """Step times of one system in one round, in seconds."""

    round: int
    system: str
    steps: list[float]


@dataclass(frozen=True)
class Ratio:
    """Of two systems' times, with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """As a cell of a table."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


class State(Enum):
    """What the rounds so far say of a goal."""

    MET = "met"
    MISSED = "missed"
    OPEN = "open"


@dataclass(frozen=True)
class Goal:
    """Ours takes at most `limit` times as long as another system."""

    other: str
    statistic: str
    ratio: Ratio
    limit: float

    @property
    def state(self) -> State:
        """By the side of the limit on which the interval is."""
        if self.ratio.high <= self.limit:
            return State.MET
        return State.MISSED if self.ratio.low > self.limit else State.OPEN

    def __str__(self) -> str:
        """What was seen and what is asked for."""
        goal = f"{self.limit:g} allowed: {self.state.value}"
        return f"{self.statistic} is {self.ratio} of {self.other}, {goal}"


@dataclass
class Findings:
    """All that was seen of one workload."""

    workload: str
    rounds: int = 0
    blocks: list[Block] = field(default_factory=list)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    """Largest difference of a weight to the minimal loop's, by system."""

    @property
    def peers(self) -> list[str]:
        """The frameworks."""
        return [name for name in self.counts if name not in (OURS, CONTROL, CONTROL_AGAIN)]

    def time(self, system: str, statistic: str) -> float:
        """Seconds per step over all rounds."""
        steps = np.concatenate([b.steps for b in self.blocks if b.system == system])
        return float(np.quantile(steps, QUANTILES[statistic]))

    def ratio(self, system: str, statistic: str, others: Sequence[str]) -> Ratio:
        """Of a system's time to that of others, the geometric mean of these."""
        logs = np.mean([self._logs(system, other, statistic) for other in others], axis=0)
        draws = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
        rest = (1 - CONFIDENCE) / 2
        low, high = np.quantile(draws, (rest, 1 - rest))
        return Ratio(*(float(np.exp(log)) for log in (logs.mean(), low, high)))

    def _logs(self, system: str, other: str, statistic: str) -> np.ndarray:
        """The logarithm of each round's ratio. Shape [rounds]."""
        pairs = [(self._steps(system, r), self._steps(other, r)) for r in range(self.rounds)]
        if statistic == "median":
            return np.array([np.median(np.log(a / b)) for a, b in pairs])
        q = QUANTILES[statistic]
        return np.array([np.log(np.quantile(a, q) / np.quantile(b, q)) for a, b in pairs])

    def _steps(self, system: str, number: int) -> np.ndarray:
        return next(
            np.array(b.steps) for b in self.blocks if b.system == system and b.round == number
        )

    def control(self, statistic: str) -> Ratio:
        """Of the second minimal loop to the first."""
        return self.ratio(CONTROL_AGAIN, statistic, (CONTROL,))

    def goals(self) -> list[Goal]:
        """At most so much of the hand-written loop, and less than each framework."""
        goals = []
        for what in QUANTILES:
            minimal = self.ratio(OURS, what, (CONTROL, CONTROL_AGAIN))
            goals.append(Goal(CONTROL, what, minimal, MAX_RATIO))
            goals += [Goal(p, what, self.ratio(OURS, what, (p,)), 1.0) for p in self.peers]
        return goals

    def fair(self) -> bool:
        """Whether the two minimal loops are as fast as each other, as far as can be seen."""
        controls = [self.control(what) for what in QUANTILES]
        return all(ratio.low <= 1 <= ratio.high for ratio in controls)


def decided(found: Findings) -> bool:
    """Whether there is a verdict on times."""
    if found.rounds < MIN_ROUNDS or not found.fair():
        return False
    return all(goal.state is not State.OPEN for goal in found.goals())
