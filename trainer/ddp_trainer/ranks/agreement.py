"""Make joint decisions of all ranks during training in one small reduction.

No rank may decide alone to stop, save or report, because all other ranks would wait for it in the
next collective. So requests are part of the reduction that each report needs. Reports can be far
apart, so the ranks also exchange requests every few seconds in between. They reduce their step
times too, from which all ranks compute the same next exchange.
"""

import math
import time
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from ddp_trainer.ranks.collectives import sum_over_ranks


@dataclass(frozen=True, slots=True)
class DataStarvation:
    """Sums over the starving ranks, which wait for data more than `LARGEST_SHARE` of their time."""

    rank_count: float = 0.0
    """Number of starving ranks."""
    rank_sum: float = 0.0
    """Sum of the starving ranks' numbers. If only one rank starves, this is its number."""
    share_sum: float = 0.0
    """Sum of the starving ranks' waits, each as a share of the rank's time from 0 to 1."""


NOT_STARVING = DataStarvation()
MOST_RANKS = 1024
"""Maximum number of ranks whose times are exchanged individually, with 24 bytes per rank and
exchange."""


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """Seconds of a typical update on one rank, by part. 0 means not measured."""

    step: float = 0.0
    """Duration of the update. In a report it is the mean of all updates since the last report."""
    data: float = 0.0
    """Time until all batches of the update have arrived."""
    forward: float = 0.0
    """Time for the forward passes."""

    @property
    def own(self) -> float:
        """Time for data and forward passes.

        The duration of an update is nearly equal on all ranks, because all ranks wait for the
        slowest rank. Data and forward passes contain no such wait under DDP, so their time shows
        which rank is slowest.
        """
        return self.data + self.forward


NOT_MEASURED = RankSeconds()


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one rank to all ranks, and its reports to them."""

    stop: bool = False
    """Whether to stop. One rank's request is enough."""
    finish: bool = False
    """Whether to finish, because the time for training is used up. Only rank 0 sets it, by its
    clock."""
    save: bool = False
    """Whether to save a checkpoint that is due by the clock. Only rank 0 sets it."""
    communication_wait: float = 0.0
    """Share of this rank's time spent waiting for communication, from 0 to 1. 0 if not needed."""
    starvation: DataStarvation = NOT_STARVING
    """This rank's values for the sums over starving ranks."""
    rank_seconds: RankSeconds = NOT_MEASURED
    """Durations of this rank, for a report."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of one exchange, equal on all ranks."""

    loss_sum: float
    loss_count: float
    stop: bool
    finish: bool
    save: bool
    nonfinite: int
    """Number of updates since the last report whose gradients were not finite."""
    communication_wait: float
    """Share of time spent waiting for communication, mean over ranks."""
    starvation: DataStarvation
    """Sums over starving ranks, over all ranks."""
    seconds: float
    """Seconds since the previous exchange of such values, mean over ranks."""
    rank_seconds: tuple[RankSeconds, ...] = ()
    """Durations of each rank. Empty above `MOST_RANKS` ranks."""
    parts: tuple[float, ...] = ()
    """Named parts of the loss, summed over ranks."""

    @property
    def loss(self) -> float:
        """Mean training loss per sample or token. NaN if the count is 0."""
        return self.loss_sum / self.loss_count if self.loss_count else float("nan")


class Agreement:
    """Schedule of exchanges between ranks, and the exchange itself."""

    def __init__(
        self, *, step: int, every_steps: int, within_seconds: float, rank: int, world_size: int
    ) -> None:
        """Create a schedule whose first exchange is due immediately.

        Args:
            step: Number of completed updates at the start of the attempt.
            every_steps: Updates between two reports. An exchange is due at each report.
            within_seconds: Approximate maximum seconds between two exchanges.
            rank: This rank's number.
            world_size: Number of ranks.
        """
        self._rank = rank
        self._listed_ranks = world_size if world_size <= MOST_RANKS else 0
        self._every_steps = every_steps
        self._within = within_seconds
        self._world_size = world_size
        self._last_step = step
        self._last_time = time.monotonic()
        self._next_step = step

    def due(self, step: int) -> bool:
        """Return whether the ranks exchange requests after this update; equal on all ranks."""
        return step >= self._next_step or step % self._every_steps == 0

    def exchange(
        self, step: int, totals: Tensor, requests: Requests, parts: Tensor | None = None
    ) -> Decision:
        """Reduce losses, requests and step time over all ranks. Costs one host sync.

        Args:
            step: Number of completed updates.
            totals: This rank's sums since the last report: loss sum, loss count, and updates whose
                gradients were not finite. Shape (3,), fp64, on the run's device.
            requests: This rank's requests.
            parts: This rank's sums of the parts of the loss. Shape (n,), with the type and device
                of `totals`.
        """
        flags = [float(requests.stop), float(requests.finish), float(requests.save)]
        elapsed = time.monotonic() - self._last_time
        values = [*flags, requests.communication_wait, elapsed, *astuple(requests.starvation)]
        values += self._by_rank(requests.rank_seconds)
        mine = torch.tensor(values, dtype=totals.dtype).to(totals.device)
        parts = totals[:0] if parts is None else parts
        summed = sum_over_ranks(torch.cat((parts, totals, mine))).tolist()
        parts_sums, summed = summed[: len(parts)], summed[len(parts) :]
        loss_sum, loss_count, nonfinite, stop, finish, save, wait, seconds, *rest = summed
        self._schedule_next(step, seconds / self._world_size)
        return Decision(
            loss_sum=loss_sum,
            loss_count=loss_count,
            stop=stop > 0,
            finish=finish > 0,
            save=save > 0,
            nonfinite=math.ceil(nonfinite / self._world_size),
            communication_wait=wait / self._world_size,
            starvation=DataStarvation(*rest[:3]),
            seconds=seconds / self._world_size,
            rank_seconds=tuple(map(RankSeconds, rest[3::3], rest[4::3], rest[5::3])),
            parts=tuple(parts_sums),
        )

    def _by_rank(self, own: RankSeconds) -> list[float]:
        """Return three numbers for each rank. Those of other ranks are 0, so a sum joins all."""
        values = [0.0] * (3 * self._listed_ranks)
        if values:
            values[3 * self._rank : 3 * self._rank + 3] = astuple(own)
        return values

    def _schedule_next(self, step: int, seconds: float) -> None:
        steps = max(1, step - self._last_step)
        ahead = self._within * steps / max(seconds, 1e-6)
        # At most 10 times the measured steps, because the first updates are not typical.
        self._next_step = step + max(1, min(int(ahead), 10 * steps))
        self._last_step, self._last_time = step, time.monotonic()
