"""Estimate of a rank's memory by strategy, and advice on the strategy."""

from dataclasses import dataclass

from ddp_trainer.config import StrategyName

STRATEGIES: tuple[StrategyName, ...] = ("ddp", "zero1", "fsdp2")
ADVISABLE_PART = 0.6
"""Part of a device's memory for weights, gradients and state; the rest is for activations."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the whole model, before a strategy splits it."""

    weights: int
    gradients: int
    optimizer: int
    """Optimizer state, in bytes."""
    average: int = 0
    """Moving average of the weights, in bytes."""

    def per_rank(self, strategy: StrategyName, ranks: int) -> int:
        """Return the bytes on each rank, without activations and temporarily gathered blocks.

        Args:
            strategy: The strategy.
            ranks: Number of ranks.
        """
        whole = {
            "ddp": self.weights + self.gradients + self.optimizer + self.average,
            "zero1": self.weights + self.gradients + self.average,
            "fsdp2": 0,
        }[strategy]
        split = self.weights + self.gradients + self.optimizer + self.average - whole
        return whole + -(-split // ranks)

    def by_strategy(self, ranks: int) -> dict[StrategyName, int]:
        """Return the bytes on each rank, for each strategy."""
        return {name: self.per_rank(name, ranks) for name in STRATEGIES}


def advise(footprint: Footprint, ranks: int, chosen: StrategyName, device_bytes: int) -> str | None:
    """Return a sentence if the chosen strategy leaves too little memory, else None.

    Args:
        footprint: Of the model.
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
