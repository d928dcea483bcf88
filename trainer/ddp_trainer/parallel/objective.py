"""Combine model and loss in one module, so that DDP reduces the loss count with the gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.task import LOSS_PARTS, Weighted


class Objective(nn.Module):
    """Module of model and loss, which computes the loss inside the wrapped forward pass.

    The user's loss receives the bare model and may call it in any way. `count_param` is a parameter
    that is always zero. The backward pass sets its gradient to the count. That gradient lies in
    DDP's buckets, so the global count costs no collective of its own.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], object]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        # The weights of a deferred model have no device yet.
        devices = (param.device for param in model.parameters() if not param.is_meta)
        device = next(devices, torch.device("cpu"))
        # Shape (1,), because the PowerSGD hook takes no tensor without dimensions.
        self.count_param = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))

    def forward(
        self, batch: Any, scale: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, dict[str, Tensor]]:
        """Compute the loss of one batch.

        Args:
            batch: A batch of the task's data.
            scale: Factor of the differentiated sum but not of the count, from an fp16 gradient
                scaler.

        Returns:
            Fp32 scalars: the two roots of the backward pass (`backward`), the loss sum and the loss
            count. The last item is the named parts of the loss, as scalars without gradients.

        Raises:
            InputError: If the task's loss returned anything but a weighted scalar with scalar
                parts.
        """
        weighted = self.loss(self.model, batch)
        if not isinstance(weighted, Weighted) or weighted.sum.dim():
            raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
        total, count = weighted.sum.float(), weighted.count_tensor()
        # A view of it, because DDP searches the graph of what `forward` returns for parameters.
        roots = scale(total), self.count_param.squeeze()
        return roots, total.detach(), count, _detached(weighted.parts)


def backward(roots: tuple[Tensor, Tensor], count: Tensor, factor: float = 1.0) -> None:
    """Run the backward pass: add the gradients of a loss, and its count to `count_param`.

    Args:
        roots: First item that `Objective.forward` returned.
        count: The loss count.
        factor: Factor of all gradients.
    """
    total, counted = roots
    gradients = [None, count]
    if factor != 1.0:
        gradients = [torch.full_like(total, factor), count * factor]
    # A batch may have a loss that no weight has influenced.
    used = slice(None) if total.requires_grad else slice(1, None)
    torch.autograd.backward([total, counted][used], gradients[used])


def _detached(parts: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the named parts of a loss, detached from the graph.

    Raises:
        InputError: If there are too many parts, or one is not a scalar tensor.
    """
    if len(parts) > LOSS_PARTS:
        raise InputError(f"task: loss must have at most {LOSS_PARTS} parts, not {len(parts)}")
    detached = {}
    for name, part in parts.items():
        if not isinstance(part, Tensor) or part.dim():
            raise InputError(f'task: part "{name}" of the loss must be a scalar tensor')
        detached[name] = part.detach()
    return detached
