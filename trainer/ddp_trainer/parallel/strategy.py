"""Interface of the strategies ddp, zero1 and fsdp2, which spread state over the ranks.

A strategy wraps the objective, may split the optimizer, controls when a backward pass reduces
gradients, and may act after an update. Split tensors are torch's `DTensor`. A split optimizer does
not have the parameters of other ranks. So checkpoint code is the same for all strategies.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.config import ParallelConfig, Precision, StrategyName
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.ranks.collectives import is_joined


class Strategy:
    """Strategy of a single process, and base class of all other strategies."""

    splits_optimizer = False
    """Whether each rank has the optimizer state of different parameters."""

    def __init__(
        self, device: torch.device, config: ParallelConfig, precision: Precision = "fp32"
    ) -> None:
        self.device = device
        self.config = config
        self.precision = precision

    def wrap(self, objective: Objective, *, compile_options: Mapping[str, Any] | None) -> nn.Module:
        """Move the objective to the device, and wrap it so that ranks reduce its gradients.

        Args:
            objective: Objective in host memory, equal on all ranks.
            compile_options: Options of torch.compile. None leaves the model as it is.
        """
        objective.to(self.device)
        if compile_options is not None:
            # In place, so that the names of the parameters stay as they are.
            objective.model.compile(**compile_options)
        return objective

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave this rank its part of the optimizer, before its first update."""

    def gradient_sync(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Return the context of one forward and backward pass.

        Args:
            wrapped: The module that `wrap` returned.
            reduce: Whether the pass ends with reduced gradients. Otherwise it only adds to this
                rank's gradients.
        """
        del wrapped, reduce
        return nullcontext()

    def check_reduced(self, wrapped: nn.Module) -> None:
        """Check that the backward pass has reduced all gradients, before the update uses them.

        Args:
            wrapped: The module that `wrap` returned.

        Raises:
            InputError: If a gradient is not reduced, because this rank left weights without a
                gradient.
        """

    def mean(self, value: Tensor) -> Tensor:
        """Return the average over ranks of a gradient that the strategy does not manage itself."""
        return value

    def local_parts(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return this rank's parts of the gradients, without a copy."""
        return gradients

    def drop_unused(self, params: list[nn.Parameter]) -> None:
        """Drop the gradients of weights that no pass of the update has used.

        Args:
            params: The trained parameters.
        """

    def any(self, flag: Tensor) -> None:
        """Set a flag, 0 or 1, of this rank's part of the gradients if it is set on any rank."""

    def after_update(self) -> None:
        """Distribute the updated weights, so that all ranks have all weights after an update."""

    def free_gathered(self, model: nn.Module) -> None:
        """Free the gathered weights after a forward pass without a backward pass.

        Args:
            model: The bare model.
        """

    @contextmanager
    def whole_weights(self, model: nn.Module) -> Iterator[Callable[[], nn.Module]]:
        """Return the context of a task's hook, which yields a function that returns the model.

        That model has whole weights until the context ends. Changes to its weights are kept. If one
        rank calls the function, all ranks must.

        Args:
            model: The bare model.
        """
        yield lambda: model


def choose_strategy(device: torch.device, config: ParallelConfig, precision: Precision) -> Strategy:
    """Return the configured strategy, or the default strategy in a single process."""
    if not is_joined():
        return Strategy(device, config, precision)
    kinds: dict[StrategyName, str] = {
        "ddp": "ddp_trainer.parallel.ddp:Replicated",
        "zero1": "ddp_trainer.parallel.zero1:SplitOptimizer",
        "fsdp2": "ddp_trainer.parallel.fsdp:FullySharded",
    }
    # Import only the one in use: each needs modules of torch that take long to import.
    found: Strategy = pkgutil.resolve_name(kinds[config.strategy])(device, config, precision)
    return found
