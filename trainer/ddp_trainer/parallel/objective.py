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
    its count a gradient: the derivative of `carrier * count` by `carrier`, which is zero, is the
    count. The carrier rides in DDP's gradient buckets, so the global count arrives with the
    gradients and costs no collective of its own.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        first = next(model.parameters())
        self.carrier = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=first.device))
        self._number: float | None = None
        self._count = torch.zeros(())

    def forward(
        self, batch: Any, scale: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the loss of one batch.

        Args:
            batch: As the task's data give it.
            scale: Applied to what is differentiated but not to the count; a fp16 gradient scaler's.

        Returns:
            In fp32: what to differentiate, of shape (1,), whose gradient by the carrier is the
            count; the loss sum, of the same shape, and the count, a scalar. Nobody changes them.

        Raises:
            InputError: If the task's loss returned something else than a weighted scalar.
        """
        weighted = self.loss(self.model, batch)
        if not isinstance(weighted, Weighted) or weighted.sum.dim():
            raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
        total, count = weighted.sum.float(), self._counted(weighted)
        scaled = scale(total)
        root = torch.addcmul(scaled, self.carrier, count)
        if scaled is not total:
            total = total.detach().clone().view(1)
            return root, total, count
        return root, root.detach(), count

    def _counted(self, weighted: Weighted) -> Tensor:
        """The count; one that is a number is made a tensor only when it is another one."""
        if isinstance(weighted.count, Tensor):
            # A copy: it may be the user's own tensor, which the next batch changes.
            return weighted.count_tensor().clone()
        if self._number != weighted.count:
            self._number, self._count = weighted.count, weighted.count_tensor()
        return self._count
