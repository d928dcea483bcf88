"""One update."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ddp_trainer.config import Precision
from ddp_trainer.data.micro import Micro
from ddp_trainer.numerics.precision import autocast
from ddp_trainer.numerics.seeds import derive, seed_torch
from ddp_trainer.parallel.strategy import synchronised


@dataclass(slots=True)
class Learner:
    """Everything that an update reads or changes."""

    objective: nn.Module
    """Model and loss, wrapped for the process group if there is one."""
    model: nn.Module
    """The bare model."""
    carrier: nn.Parameter
    """Its gradient is the count that the gradients of the sum are divided by."""
    optimizer: torch.optim.Optimizer
    peak_lrs: list[float]
    """Per parameter group."""
    scaler: torch.amp.GradScaler
    device: torch.device
    precision: Precision
    clip_norm: float | None
    share: int
    """Samples of this rank in a full update."""
    seed: int
    rank: int
    totals: Tensor
    """Shape (2,), fp64, on the device: loss sum and count of this rank since the last report."""
    grad_norm: Tensor | None = None
    """Norm before clipping of the newest update, on the device; only when clipping."""

    def autocast(self) -> AbstractContextManager[object]:
        """Context of the forward pass."""
        return autocast(self.precision, self.device)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that have a gradient now."""
        params = (p for group in self.optimizer.param_groups for p in group["params"])
        return [param for param in params if param.grad is not None]


def train_step(learner: Learner, micros: Iterator[Micro], step: int, lr_factor: float) -> int:
    """Makes one optimizer update, without a host sync and with DDP's reductions only.

    The gradient is that of (sum of the loss sums) / (sum of the counts) over all forward passes of
    all ranks, whatever their sizes.

    Args:
        learner: Changed in place.
        micros: This rank's forward passes; used up.
        step: Index of the update, from 0.
        lr_factor: Learning rate as a factor of the peak.

    Returns:
        Samples consumed, over all ranks.
    """
    for group, peak in zip(learner.optimizer.param_groups, learner.peak_lrs, strict=True):
        group["lr"] = peak * lr_factor
    samples = 0
    for index, micro in enumerate(micros):
        seed_torch(derive(learner.seed, "compute", step, learner.rank, index))
        with synchronised(learner.objective, reduce=micro.last):
            with learner.autocast():
                total, count, carried = learner.objective(micro.batch)
            # Dividing by a constant keeps fp16 gradients in range; it cancels against the count.
            weight = micro.weight / learner.share
            (learner.scaler.scale(total * weight) + carried * weight).backward()
        learner.totals.add_(torch.stack((total.detach(), count)), alpha=micro.weight)
        samples = micro.update_samples
    _finish_update(learner)
    return samples


def rehearse(learner: Learner, micro: Micro) -> None:
    """Makes one forward and backward pass that changes nothing but DDP's layout of its buckets.

    DDP orders its buckets by the first backward pass. That changes the order in which three or more
    ranks' numbers are added, so the first update of an attempt would differ in the last bit from
    the same update within a longer one. After a rehearsal all updates are alike. Every rank must
    call it.

    Args:
        learner: Left as it was.
        micro: Any forward pass of training.
    """
    buffers = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    with learner.autocast():
        total, _, carried = learner.objective(micro.batch)
    (total + carried).sum().backward()
    learner.objective.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in learner.model.named_buffers():
            buffer.copy_(buffers[name])


def _finish_update(learner: Learner) -> None:
    learner.scaler.unscale_(learner.optimizer)
    params = learner.trained()
    _divide(params, learner.carrier)
    if learner.clip_norm is not None:
        learner.grad_norm = torch.nn.utils.clip_grad_norm_(params, learner.clip_norm)
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.optimizer.zero_grad(set_to_none=True)


def _divide(params: list[nn.Parameter], carrier: nn.Parameter) -> None:
    """Divides the averaged sums by the averaged count; by nothing where nothing was counted."""
    count = cast("Tensor", carrier.grad).clamp(min=torch.finfo(torch.float32).tiny).squeeze()
    torch._foreach_div_([cast("Tensor", param.grad) for param in params], count)
    carrier.grad = None
