"""What each rank holds, and how ranks stay one model: ddp, zero1 or fsdp2 behind one door.

Learner and checkpoints know no more of a strategy than this: it wraps the objective, may take its
part of the optimizer, says whether a backward pass reduces, and has something to do after an
update. What it holds in parts it holds as torch's own `DTensor`, or as an optimizer that lacks
parameters, so a checkpoint is gathered and put back alike for all of them.
"""

import pkgutil
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ddp_trainer.config import ParallelConfig, StrategyName
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.ranks.collectives import is_joined


class Strategy:
    """A world of one process, and what the others do alike."""

    splits_optimizer = False
    """Whether ranks hold optimizer state of different parameters."""

    def __init__(self, device: torch.device, config: ParallelConfig) -> None:
        self.device = device
        self.config = config

    def wrap(self, objective: Objective, *, compiled: bool) -> nn.Module:
        """Moves the objective to the device, and makes its gradients those of all ranks.

        Args:
            objective: In host memory, equal on all ranks.
            compiled: Whether torch.compile translates the model.
        """
        objective.to(self.device)
        if compiled:
            # In place, so that the names of the parameters stay as they are.
            objective.model.compile(dynamic=False)
        return objective

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves this rank its part of the optimizer, before its first update."""

    def synchronised(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Context of one forward and backward pass.

        Args:
            wrapped: What `wrap` returned.
            reduce: Whether the pass ends with reduced gradients, or only adds to this rank's.
        """
        del wrapped, reduce
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """A value that came with the gradients, averaged over ranks as they are."""
        return value

    def memory(self, gradients: list[Tensor]) -> list[Tensor]:
        """The tensors that hold this rank's part of all gradients, as few as there are."""
        return gradients

    def any(self, flag: Tensor) -> None:
        """Makes a flag, 0 or 1, that was found in this rank's gradients true if it is on any."""

    def updated(self) -> None:
        """Makes the weights whole again, right after an update."""


def choose_strategy(device: torch.device, config: ParallelConfig) -> Strategy:
    """The strategy that the configuration names, or none in a process without a group."""
    if not is_joined():
        return Strategy(device, config)
    kinds: dict[StrategyName, str] = {
        "ddp": "ddp_trainer.parallel.ddp:Replicated",
        "zero1": "ddp_trainer.parallel.zero1:SplitOptimizer",
        "fsdp2": "ddp_trainer.parallel.fsdp:FullySharded",
    }
    # Only now, and only one: each needs modules of torch that take long to import.
    found: Strategy = pkgutil.resolve_name(kinds[config.strategy])(device, config)
    return found
