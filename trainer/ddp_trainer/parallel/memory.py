"""How much memory a rank needs for what training keeps, by strategy; and which one to take."""

from dataclasses import dataclass

from ddp_trainer.config import StrategyName

STRATEGIES: tuple[StrategyName, ...] = ("ddp", "zero1", "fsdp2")
ADVISABLE_PART = 0.6
"""Of a device's memory; the rest is for activations, buckets and the allocator's slack."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the whole model, before it is split."""

    weights: int
    gradients: int
    optimizer: int
    """State of the update rule."""
    average: int = 0
    """Moving average of the weights."""

    def per_rank(self, strategy: StrategyName, ranks: int) -> int:
        """Bytes on each rank, without activations and without blocks that are gathered in passing.

        Args:
            strategy: Which.
            ranks: Among how many is split.
        """
        whole = {
            "ddp": self.weights + self.gradients + self.optimizer + self.average,
            "zero1": self.weights + self.gradients + self.average,
            "fsdp2": 0,
        }[strategy]
        split = self.weights + self.gradients + self.optimizer + self.average - whole
        return whole + -(-split // ranks)

    def by_strategy(self, ranks: int) -> dict[StrategyName, int]:
        """Bytes on each rank, for each strategy."""
        return {name: self.per_rank(name, ranks) for name in STRATEGIES}


def advise(footprint: Footprint, ranks: int, chosen: StrategyName, device_bytes: int) -> str | None:
    """A sentence, if another strategy would fit where the chosen one leaves too little room.

    Args:
        footprint: Of the model.
        ranks: Number of ranks.
        chosen: Strategy of the run.
        device_bytes: Memory of a device.
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
