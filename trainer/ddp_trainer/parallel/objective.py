"""Model and loss as one module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.task import Weighted


class Objective(nn.Module):
    """Model and loss as one module, so that the loss is a wrapped forward pass.

    The user's loss receives the bare model and may call it in any way. Beside the loss sum it gives
    its count a gradient: the derivative of `carrier * count` by `carrier` is the count. The carrier
    rides in DDP's gradient buckets, so the global count arrives with the gradients and costs no
    collective of its own.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        first = next(model.parameters())
        self.carrier = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=first.device))

    def forward(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the loss of one batch.

        Returns:
            In fp32: the loss sum and the count, both scalars, and a zero of shape (1,) whose
            gradient by the carrier is the count.

        Raises:
            InputError: If the task's loss returned something else than a weighted scalar.
        """
        weighted = self.loss(self.model, batch)
        if not isinstance(weighted, Weighted) or weighted.sum.dim():
            raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
        count = weighted.count_tensor()
        return weighted.sum.float(), count, self.carrier * count
