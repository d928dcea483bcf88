"""Detection of a rank that is slower than the others for a while, and makes all of them wait."""

from collections.abc import Sequence
from statistics import median_low

from ddp_trainer.ranks.agreement import RankSeconds
from ddp_wire.contract import Straggler

SLOW_RATIO = 1.2
"""Own part of the slowest rank's update, as a multiple of the median rank's, that is too long."""
NORMAL_RATIO = 1.1
"""Ratio below which the rank is no straggler any more."""
DEVIATIONS = 4.0
"""Least excess of a slow rank over the median, in median absolute deviations of all ranks. Where
all ranks vary much, for example on shared machines, a large ratio alone says little."""
LEAST_PART = 0.05
"""Least excess of a slow rank, as a part of the update. A rank that costs less is not worth a name,
and on an overloaded machine a rank with little work of its own often seems slow."""
WINDOWS = 3
"""Readings in a row after which a slow rank is named, or not any more."""


class StragglerMonitor:
    """Comparison of all ranks. It is a function of readings that are equal on all ranks."""

    def __init__(self) -> None:
        self.found: Straggler | None = None
        """The rank that is slow now."""
        self._suspect: int | None = None
        self._windows = 0
        self._normal = 0
        self._first = True

    def assess(self, works: Sequence[RankSeconds]) -> Straggler | None:
        """Return a rank that turns out to be slow by this reading, or None.

        Args:
            works: Own part of a typical update, by rank.
        """
        if len(works) < 2 or any(work.own <= 0.0 for work in works):  # noqa: PLR2004 (a pair)
            return None
        if self._first:  # The first reading includes the start of the data workers.
            self._first = False
            return None
        usual = median_low(work.own for work in works)
        spread = median_low(abs(work.own - usual) for work in works)
        rank = max(range(len(works)), key=lambda one: works[one].own)
        ratio = works[rank].own / usual
        excess = works[rank].own - usual
        is_slow = ratio >= SLOW_RATIO and excess > DEVIATIONS * spread
        is_slow = is_slow and excess >= LEAST_PART * works[rank].step
        if self.found is not None:
            self._release(works[self.found.rank].own / usual)
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

    def _release(self, ratio: float) -> None:
        """Forget the straggler once it has been as fast as the others for a while."""
        self._normal = self._normal + 1 if ratio < NORMAL_RATIO else 0
        if self._normal >= WINDOWS:
            self.found, self._normal = None, 0


def sentence(found: Straggler) -> str:
    """Return a warning about a slow rank."""
    return (
        f"rank {found.rank} needs {found.ratio:.1f} times as long as the others for its"
        f" {found.part}, and all other ranks wait for it"
    )


def _slow_part(works: Sequence[RankSeconds], rank: int) -> str:
    """Return the part in which a rank loses most time against the median rank."""
    data = works[rank].data - median_low(work.data for work in works)
    forward = works[rank].forward - median_low(work.forward for work in works)
    return "data" if data > forward else "forward pass"
