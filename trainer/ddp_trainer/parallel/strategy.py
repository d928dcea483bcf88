"""How the replicas are kept equal: DistributedDataParallel, with settings that fit its version."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.config import ParallelConfig
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.collectives import is_joined
from ddp_trainer.task import Weighted


class Objective(nn.Module):
    """Model and loss as one module, so that the loss is a wrapped forward pass.

    The user's loss receives the bare model and may call it in any way. Beside the loss sum it gives
    its count a gradient: the derivative of `carrier * count` by `carrier` is the count. The carrier
    rides in the gradient buckets, so the global count arrives with the gradients and costs no
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
            Three fp32 scalars: the loss sum, the count, and a zero whose gradient by the carrier is
            the count.

        Raises:
            InputError: If the task's loss returned something else than a weighted scalar.
        """
        weighted = self.loss(self.model, batch)
        if not isinstance(weighted, Weighted) or weighted.sum.dim():
            raise InputError("task: loss must return Weighted(sum, count) with a scalar sum")
        count = weighted.count_tensor()
        return weighted.sum.float(), count, (self.carrier * count).sum()


def replicate(objective: Objective, device: torch.device, config: ParallelConfig) -> nn.Module:
    """Wraps the objective in DDP where there is a process group; rank 0's weights win.

    Buffers are not broadcast in the forward pass: BatchNorm statistics are averaged before they are
    used (see `numerics.norm`), which saves a collective per buffer and update.

    Args:
        objective: On `device` already.
        device: The rank's device.
        config: Bucket size and whether parameters may be unused.
    """
    if not is_joined():
        return objective
    known = inspect.signature(DistributedDataParallel).parameters
    settings: dict[str, Any] = {
        "device_ids": [device] if device.type == "cuda" else None,
        "bucket_cap_mb": config.bucket_mb,
        "find_unused_parameters": config.find_unused_parameters,
        "gradient_as_bucket_view": True,
    }
    # Newer torch names the buffers' switch otherwise, and can copy gradients in one kernel.
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings[buffers] = False
    if "batched_grad_copy" in known:
        settings["batched_grad_copy"] = True
    return DistributedDataParallel(objective, **settings)


def synchronised(module: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
    """Context of one forward and backward pass, which reduces gradients or only adds to them."""
    if reduce or not isinstance(module, DistributedDataParallel):
        return nullcontext()
    return module.no_sync()
