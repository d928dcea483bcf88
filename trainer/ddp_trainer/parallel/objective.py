"""Model and loss as one module, so that DDP reduces the loss count with the gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.task import LOSS_PARTS, Weighted


class Objective(nn.Module):
    """Model and loss as one module: the loss is computed inside the wrapped forward pass.

    The user's loss receives the bare model and may call it in any way. `count_param` is a parameter
    that is always zero. The loss adds `count_param * count`, so the gradient of `count_param` is
    the count. It lies in DDP's buckets, so the global count costs no collective of its own.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        device = next(model.parameters()).device
        # Shape (1,), because the PowerSGD hook takes no tensor without dimensions.
        self.count_param = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))

    def forward(
        self, batch: Any, scale: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Compute the loss of one batch.

        Args:
            batch: A batch of the task's data.
            scale: Applied to the differentiated sum but not to the count: an fp16 gradient scaler.

        Returns:
            Three fp32 scalars: the root of the backward pass, the loss sum and the loss count. And
            the named parts of the loss, as scalars without gradients.

        Raises:
            InputError: If the task's loss returned anything but a weighted scalar with scalar
                parts.
        """
        weighted = self.loss(self.model, batch)
        if not isinstance(weighted, Weighted) or weighted.sum.dim():
            raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
        total, count = weighted.sum.float(), weighted.count_tensor()
        root = scale(total) + self.count_param.squeeze() * count
        return root, total.detach(), count, _detached(weighted.parts)


def _detached(parts: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the parts without gradients.

    Raises:
        InputError: If they are too many, or one is no scalar tensor.
    """
    if len(parts) > LOSS_PARTS:
        raise InputError(f"task: loss must have at most {LOSS_PARTS} parts, not {len(parts)}")
    detached = {}
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.dim():
            raise InputError(f'task: part "{name}" of the loss must be a scalar tensor')
        detached[name] = part.detach()
    return detached
