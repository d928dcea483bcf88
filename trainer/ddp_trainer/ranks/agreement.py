"""What the ranks agree on while they train, in one small reduction.

A rank alone must never decide to stop, to save or to report: the others would wait for it in the
next collective. So wishes ride on the reduction that a report needs anyway. Reports may be far
apart, so the ranks also meet in between, about every few seconds: they reduce their step time and
derive the same next meeting from it.
"""

import math
import time
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from ddp_trainer.ranks.collectives import sum_over_ranks


@dataclass(frozen=True, slots=True)
class Starving:
    """What is known of ranks whose share is above `LARGEST_SHARE`."""

    ranks: float = 0.0
    """How many they are."""
    numbers: float = 0.0
    """The sum of their numbers: the rank, where it is one."""
    shares: float = 0.0
    """The sum of their shares."""


NOT_STARVING = Starving()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one rank would like."""

    stop: bool = False
    """Any rank's wish counts."""
    finish: bool = False
    """The time for training is used up; stated by rank 0 alone, so that one clock decides."""
    save: bool = False
    """A checkpoint is due by the clock; stated by rank 0 alone."""
    waiting: float = 0.0
    """Part of this rank's time spent waiting for communication, if somebody wants to know."""
    starving: Starving = NOT_STARVING
    """Whether this rank waits for data too long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks agreed on."""

    loss_sum: float
    loss_count: float
    stop: bool
    finish: bool
    save: bool
    nonfinite: int
    """Updates since the last report whose gradients were not finite."""
    waiting: float
    """Mean over ranks."""
    starving: Starving
    """Sum over ranks."""
    seconds: float
    """Since the ranks met last, mean over ranks."""

    @property
    def loss(self) -> float:
        """Mean loss per counted unit; not a number when nothing was counted."""
        return self.loss_sum / self.loss_count if self.loss_count else float("nan")


class Agreement:
    """Decides when the ranks meet, and holds the meeting."""

    def __init__(
        self, *, step: int, every_steps: int, within_seconds: float, world_size: int
    ) -> None:
        """The first meeting is due at once.

        Args:
            step: Updates done when the attempt begins.
            every_steps: Updates between two reports; a meeting is due at each.
            within_seconds: About the longest time between two meetings.
            world_size: Number of ranks.
        """
        self._every_steps = every_steps
        self._within = within_seconds
        self._world_size = world_size
        self._last_step = step
        self._last_time = time.monotonic()
        self._next_step = step

    def due(self, step: int) -> bool:
        """Whether the ranks meet after this update; equal on all ranks."""
        return step >= self._next_step or step % self._every_steps == 0

    def meet(self, step: int, totals: Tensor, wishes: Wishes) -> Verdict:
        """Reduces losses, wishes and step time over all ranks, and reads them: one host sync.

        Args:
            step: Updates done.
            totals: Shape (3,), fp64, on the run's device, of this rank since the last report: loss
                sum, loss count, and updates whose gradients were not finite.
            wishes: This rank's.
        """
        flags = [float(wishes.stop), float(wishes.finish), float(wishes.save), wishes.waiting]
        elapsed = time.monotonic() - self._last_time
        hunger = astuple(wishes.starving)
        mine = torch.tensor([*flags, elapsed, *hunger], dtype=totals.dtype).to(totals.device)
        summed = sum_over_ranks(torch.cat((totals, mine))).tolist()
        loss_sum, loss_count, nonfinite, stop, finish, save, waiting, seconds, *starving = summed
        self._plan(step, seconds / self._world_size)
        return Verdict(
            loss_sum=loss_sum,
            loss_count=loss_count,
            stop=stop > 0,
            finish=finish > 0,
            save=save > 0,
            nonfinite=math.ceil(nonfinite / self._world_size),
            waiting=waiting / self._world_size,
            starving=Starving(*starving),
            seconds=seconds / self._world_size,
        )

    def _plan(self, step: int, seconds: float) -> None:
        steps = max(1, step - self._last_step)
        ahead = self._within * steps / max(seconds, 1e-6)
        # Never much further than what was seen: the first updates are not typical of the rest.
        self._next_step = step + max(1, min(int(ahead), 10 * steps))
        self._last_step, self._last_time = step, time.monotonic()
