"""Cases that `verify` compares. Each is another way to compute the same updates."""

from dataclasses import dataclass

from ddp_trainer.config import StrategyName

ACCUMULATION = 4
"""Micro-batches per rank and update in the cases with accumulation."""


@dataclass(frozen=True, slots=True)
class VerificationPlan:
    """Cases that `verify` compares with one process, and the tolerance."""

    steps: int
    """Number of updates."""
    tolerance: float
    """Largest permitted difference of a weight from the same weight of one process."""
    ranks: tuple[int, ...]
    """World sizes of the cases, each at least 2."""
    strategies: tuple[StrategyName, ...]

    def cases(self) -> list["Case"]:
        """Return all cases. Only ddp has cases with accumulation, to save time."""
        kinds = [(name, count) for name in self.strategies for count in _accumulations(name)]
        several = [Case(world, name, count) for world in self.ranks for name, count in kinds]
        return [Case(1, accumulation=ACCUMULATION), *several]


def _accumulations(strategy: StrategyName) -> tuple[int, ...]:
    return (1, ACCUMULATION) if strategy == "ddp" else (1,)


@dataclass(frozen=True, slots=True)
class Case:
    """One way to compute the same updates."""

    ranks: int
    """Number of ranks. 1 is a single process without a process group."""
    strategy: StrategyName = "ddp"
    accumulation: int = 1
    """Maximum number of micro-batches per rank and update."""

    @property
    def file(self) -> str:
        """Return the name of the file for the trained weights."""
        return f"{self.ranks}-{self.strategy}-{self.accumulation}.safetensors"

    def micro_batch(self, global_batch: int) -> int:
        """Return the largest number of samples in one forward pass of a rank."""
        return -(-global_batch // (self.ranks * self.accumulation))


REFERENCE = Case(1)
"""The single process that all cases are compared with."""
