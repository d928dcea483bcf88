"""Compute ratios with intervals from step times, and decide goals with them.

A round has a block of steps for each system, and two for the hand-written loop. On a CPU the
systems take turns of a few steps. Slow changes of the machine (heat, other virtual machines) then
affect all systems and cancel. The first step of a turn is not counted, because the CPU caches then
still hold the data of another loop.

Each round gives two ratios of two systems: the ratio of the p10 of their steps, and the median
ratio of their steps at the same place in the same turn. The result is the geometric mean over
rounds. It is 1 on average for equal systems, however skewed the times are, and the ratio of A to B
is the inverse of the ratio of B to A. Its interval comes from the rounds (bootstrap, percentile
method; Efron 1979).

A goal is missed once the whole interval is above its limit. It is met once the interval is below
the limit, or contains it and is narrow. Until then it is open and rounds are added. The intervals
have a high confidence (99 %) because they are checked after each round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

CONTROL, CONTROL_AGAIN, OURS = "minimal", "minimal again", "ours"
PEER_LIMITS = {"Fabric": 1.02}
"""Maximum ratio of the product's step time to a framework's, where the limit is not 1."""
QUANTILES = {"p10": 0.1, "median": 0.5}
"""Statistics of the step time in the tables, with their quantiles."""
GOAL = "median"
"""Statistic of the step time to which the goals apply."""
CONFIDENCE = 0.99
MAX_WIDTH = 0.03
"""Maximum width of an interval that contains the limit, for the goal to count as met."""
MIN_ROUNDS = 10
"""Minimum number of rounds before an interval is used."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Block:
    """Step times of one system in one round, in seconds."""

    round: int
    system: str
    steps: list[float]


@dataclass(frozen=True)
class Ratio:
    """Ratio of the step times of two systems, with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the ratio as a table cell."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


class State(Enum):
    """State of a goal after the rounds so far: met, missed or open."""

    MET = "met"
    MISSED = "missed"
    OPEN = "open"


@dataclass(frozen=True)
class Goal:
    """A goal: the product's loop takes at most `limit` times as long as another system."""

    other: str
    statistic: str
    ratio: Ratio
    limit: float

    @property
    def state(self) -> State:
        """State of the goal by its interval, which must be narrow if it contains the limit."""
        if self.ratio.low > self.limit:
            return State.MISSED
        narrow = self.ratio.high - self.ratio.low <= MAX_WIDTH
        return State.MET if narrow or self.ratio.high <= self.limit else State.OPEN

    def __str__(self) -> str:
        """Return the measured ratio and its limit as text."""
        goal = f"goal {self.limit:g}: {self.state.value}"
        return f"{self.statistic} is {self.ratio} of {self.other}, {goal}"


@dataclass
class Findings:
    """All measurements of one workload."""

    workload: str
    rounds: int = 0
    blocks: list[Block] = field(default_factory=list)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_difference: dict[str, float] = field(default_factory=dict)
    """Largest difference of any weight from the hand-written loop's after the same steps, by
    system."""
    minimal_limit: float | None = None
    """Maximum ratio of the product's step time to the hand-written loop's; None without a limit."""

    @property
    def peers(self) -> list[str]:
        """Names of the measured frameworks."""
        return [name for name in self.counts if name not in (OURS, CONTROL, CONTROL_AGAIN)]

    def time(self, system: str, statistic: str) -> float:
        """Return a system's seconds per step over all rounds."""
        steps = np.concatenate([b.steps for b in self.blocks if b.system == system])
        return float(np.quantile(steps, QUANTILES[statistic]))

    def ratio(self, system: str, statistic: str, others: Sequence[str]) -> Ratio:
        """Return the ratio of a system's step time to the geometric mean of other systems."""
        logs = np.mean([self._logs(system, other, statistic) for other in others], axis=0)
        draws = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
        rest = (1 - CONFIDENCE) / 2
        low, high = np.quantile(draws, (rest, 1 - rest))
        return Ratio(*(float(np.exp(log)) for log in (logs.mean(), low, high)))

    def _logs(self, system: str, other: str, statistic: str) -> np.ndarray:
        """Return the logarithm of each round's ratio. Shape [rounds]."""
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
        """Return the step time of the second hand-written loop relative to the first."""
        return self.ratio(CONTROL_AGAIN, statistic, (CONTROL,))

    def added_seconds(self) -> float:
        """Return the seconds that the product adds to the median step of the hand-written loop."""
        ratio = self.ratio(OURS, GOAL, (CONTROL, CONTROL_AGAIN)).value
        return (ratio - 1) * self.time(CONTROL, GOAL)

    def goals(self) -> list[Goal]:
        """Return the goals for step times: against the hand-written loop and each framework."""
        goals = []
        if self.minimal_limit is not None:
            minimal = self.ratio(OURS, GOAL, (CONTROL, CONTROL_AGAIN))
            goals.append(Goal(CONTROL, GOAL, minimal, self.minimal_limit))
        for peer in self.peers:
            limit = PEER_LIMITS.get(peer, 1.0)
            goals.append(Goal(peer, GOAL, self.ratio(OURS, GOAL, (peer,)), limit))
        return goals

    def fair(self) -> bool:
        """Return whether the interval contains equal speed of the two hand-written loops."""
        control = self.control(GOAL)
        return control.low <= 1 <= control.high


def decided(found: Findings) -> bool:
    """Return whether every goal for step times is met or missed."""
    if found.rounds < MIN_ROUNDS or not found.fair():
        return False
    return all(goal.state is not State.OPEN for goal in found.goals())
