"""Estimate the memory of a rank for each strategy, and advise on the strategy."""

import math
from dataclasses import dataclass

from ddp_trainer.config import StrategyName
from ddp_trainer.parallel.zero1 import owners

STRATEGIES: tuple[StrategyName, ...] = ("ddp", "zero1", "fsdp2")
ADVISABLE_PART = 0.6
"""Share of a device's memory that weights, gradients and state may use. Activations need the
rest."""
_GIB = 1 << 30
_AVERAGE_BYTES = 4
"""Bytes per weight of the moving average, which is in fp32."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a whole parameter."""

    shape: tuple[int, ...]
    element: int
    """Bytes per element of the parameter."""
    trained: bool = True
    """Whether the parameter has a gradient and optimizer state."""

    def part(self, ranks: int) -> int:
        """Return the most elements on a rank. fsdp2 splits the first dimension, rounded up."""
        if not self.shape:
            return 1
        return -(-self.shape[0] // ranks) * math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a run for its model: weights, gradients, optimizer state and moving average."""

    params: tuple[Size, ...]
    moments: int
    """Number of values per trained weight in the optimizer's state."""
    averaged: bool = False
    """Whether there is a moving average of the weights."""
    buffers: int = 0
    """Bytes of the model's buffers, which no strategy splits."""
    full_gradients: bool = False
    """Whether fsdp2 accumulates whole gradients."""

    def per_rank(self, strategy: StrategyName, ranks: int) -> int:
        """Return the bytes on the rank that needs the most memory.

        Activations, temporarily gathered blocks and the optimizer's counters are not included.

        Args:
            strategy: The strategy.
            ranks: Number of ranks.
        """
        split = ranks if strategy == "fsdp2" else 1
        gradients = 1 if self.full_gradients else split
        optimizer = self._owned(ranks) if strategy == "zero1" else self._optimizer(split)
        return (
            self.buffers
            + sum(size.part(split) * size.element for size in self.params)
            + sum(size.part(gradients) * size.element for size in self._trained())
            + optimizer
            + self.averaged * sum(s.part(split) * _AVERAGE_BYTES for s in self._trained())
        )

    def by_strategy(self, ranks: int) -> dict[StrategyName, int]:
        """Return the bytes on the rank that needs the most memory, for each strategy."""
        return {name: self.per_rank(name, ranks) for name in STRATEGIES}

    def _trained(self) -> list[Size]:
        return [size for size in self.params if size.trained]

    def _optimizer(self, ranks: int) -> int:
        """Return the bytes of the optimizer's state, if it is split like the weights."""
        return self.moments * sum(s.part(ranks) * s.element for s in self._trained())

    def _owned(self, ranks: int) -> int:
        """Return the bytes of the optimizer's state on the rank that owns the most parameters."""
        loads = [0] * ranks
        trained = self._trained()
        for size, rank in zip(trained, owners([s.part(1) for s in trained], ranks), strict=True):
            loads[rank] += self.moments * size.part(1) * size.element
        return max(loads)


def advise(footprint: Footprint, ranks: int, chosen: StrategyName, device_bytes: int) -> str | None:
    """Return a warning if the chosen strategy leaves too little memory, else None.

    Args:
        footprint: Memory that the model needs.
        ranks: Number of ranks.
        chosen: Strategy of the run.
        device_bytes: Memory of a device, in bytes.
    """
    room = int(device_bytes * ADVISABLE_PART)
    needed = footprint.by_strategy(ranks)
    if needed[chosen] <= room:
        return None
    what = (
        f"memory: weights, gradients and optimizer need {_shown(needed[chosen])} of the"
        f" {_shown(device_bytes)} of a device with parallel.strategy {chosen}"
    )
    fitting = [name for name in STRATEGIES if needed[name] <= room]
    if fitting:
        return f"{what}; {fitting[0]} needs {_shown(needed[fitting[0]])}"
    return f"{what}; fsdp2 needs {_shown(needed['fsdp2'])}, so more ranks are needed"


def _shown(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
