"""Detect a straggler: a rank that is slower than all others for a while, so that they wait.

The duration of an update does not identify a straggler, because all ranks wait for the slowest
rank. So each rank measures its own time, for data and forward passes, and the exchange distributes
these times to all ranks. A rank is slow in a reading if its own time exceeds the median rank's

- by a ratio, with and without regard to the ranks' different shares of a batch,
- by more than the usual difference between ranks and the usual change over time,
- by more than a small share of the update, because less has no effect.

A straggler is reported after three slow readings in a row, and cleared after three normal readings.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median_low

from ddp_trainer.ranks.agreement import RankSeconds
from ddp_wire.messages import Straggler

SLOW_RATIO = 1.2
"""Minimum ratio of a slow rank's own time to the median rank's."""
NORMAL_RATIO = 1.1
"""Ratio to the median rank below which a rank is no longer a straggler."""
DEVIATIONS = 4.0
"""Minimum excess of a slow rank over the median, in median absolute deviations of all ranks. If all
ranks vary much, for example on shared machines, a large ratio alone proves little."""
CHANGES = 5.0
"""Minimum excess of a slow rank over the median, as a multiple of the usual change of the rank's
own time within a few readings. With two ranks the median deviation is 0, so only the changes over
time show the noise of a busy machine."""
LAGS = (1, 2, 4)
"""Distances between two readings, in readings, over which changes of a rank's time are computed."""
HISTORY = 24
"""Number of newest readings that are compared with each other."""
LEAST_HISTORY, MANY_RANKS = 6, 4
"""Minimum number of readings before a rank of a small gang can be reported, and minimum number of
ranks of a gang that is not small."""
LEAST_PART = 0.05
"""Minimum excess of a slow rank, as a share of the update. A smaller excess has no effect, and on
an overloaded machine a rank with little work of its own often seems slow."""
WINDOWS = 3
"""Number of slow readings in a row after which a rank is reported, and of normal readings after
which it is cleared."""


class StragglerMonitor:
    """Comparison of all ranks. It is a function of readings that are equal on all ranks."""

    def __init__(self, shares: Sequence[int] = ()) -> None:
        """Create a detector without a straggler.

        Args:
            shares: Samples of each rank in an update. A rank with more samples may need more time.
                None means that all ranks have equally many samples.
        """
        least = min(shares, default=1)
        self._scales = [share / least for share in shares]
        self.found: Straggler | None = None
        """The rank that is slow now."""
        self._suspect: int | None = None
        self._windows = 0
        self._normal = 0
        self._first = True
        self._history: deque[list[float]] = deque(maxlen=HISTORY)
        """Own seconds of all ranks in the newest readings, each divided by its rank's scale."""

    def assess(self, works: Sequence[RankSeconds]) -> Straggler | None:
        """Return a rank that this reading shows to be a straggler, or None.

        Args:
            works: Own time of a typical update, by rank.
        """
        if len(works) < 2 or any(work.own <= 0.0 for work in works):  # noqa: PLR2004 (a pair)
            return None
        if self._first:  # The first reading includes the start of the data workers.
            self._first = False
            return None
        owns = [work.own for work in works]
        scales = self._scales or [1.0] * len(works)
        scaled = [own / scale for own, scale in zip(owns, scales, strict=True)]
        self._history.append(scaled)
        usual = median_low(scaled)
        spread = median_low(abs(own - usual) for own in scaled)
        # Some work does not grow with the share, so a rank must be slow with and without the scale.
        ratios = [
            min(own / median_low(owns), alike / usual)
            for own, alike in zip(owns, scaled, strict=True)
        ]
        rank = max(range(len(works)), key=lambda one: scaled[one])
        ratio, excess = ratios[rank], scaled[rank] - usual
        is_slow = ratio >= SLOW_RATIO and excess > DEVIATIONS * spread
        is_slow = is_slow and excess >= LEAST_PART * works[rank].step
        is_slow = is_slow and self._stands_out(rank, excess)
        if self.found is not None:
            self._release(ratios[self.found.rank])
        is_new = self.found is None or self.found.rank != rank
        if not is_slow or not is_new:
            self._suspect, self._windows = None, 0
            return None
        self._windows = self._windows + 1 if rank == self._suspect else 1
        self._suspect = rank
        if self._windows < WINDOWS:
            return None
        self.found = Straggler(rank=rank, ratio=round(ratio, 2), part=_slow_part(works, rank))
        self._normal = 0
        return self.found

    def _stands_out(self, rank: int, excess: float) -> bool:
        """Return whether the excess of a rank is larger than the usual changes over time."""
        enough = len(self._history) >= LEAST_HISTORY or len(self._history[0]) >= MANY_RANKS
        return enough and excess > CHANGES * usual_change(self._history, rank)

    def _release(self, ratio: float) -> None:
        """Clear the straggler once it has been as fast as the other ranks for some readings."""
        self._normal = self._normal + 1 if ratio < NORMAL_RATIO else 0
        if self._normal >= WINDOWS:
            self.found, self._normal = None, 0


def usual_change(readings: Sequence[Sequence[float]], rank: int) -> float:
    """Return the usual change of a rank's own time within a few readings.

    The time of a rank that became slow once changes much between distant readings, but little
    between successive readings.

    Args:
        readings: Own times of all ranks, by reading.
        rank: The rank that seems slow.
    """
    others = [[one for i, one in enumerate(reading) if i != rank] for reading in readings]
    lags = [lag for lag in LAGS if lag < len(readings)]
    return max((_change(readings, 1), *(_change(others, lag) for lag in lags))) if lags else 0.0


def _change(readings: Sequence[Sequence[float]], lag: int) -> float:
    pairs = zip(readings, islice(readings, lag, None), strict=False)
    return median_low(abs(b - a) for r, s in pairs for a, b in zip(r, s, strict=True))


def sentence(found: Straggler) -> str:
    """Return a warning message about a slow rank."""
    return (
        f"rank {found.rank} needs {found.ratio:.1f} times as long as the others for its"
        f" {found.part}, and all other ranks wait for it"
    )


def _slow_part(works: Sequence[RankSeconds], rank: int) -> str:
    """Return the part of an update in which a rank is slowest compared with the median rank."""
    data = works[rank].data - median_low(work.data for work in works)
    forward = works[rank].forward - median_low(work.forward for work in works)
    return "data" if data > forward else "forward pass"
