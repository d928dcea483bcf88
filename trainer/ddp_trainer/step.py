"""One update: forward and backward passes, reduction, clipping, optimizer step."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.parallel.dtensor import whole
from ddp_trainer.seeds import derive_seed, seed_torch


def train_step(
    learner: Learner, micro_batches: Iterator[MicroBatch], step: int, lr_factor: float
) -> int:
    """Make one optimizer update, without a host sync and with the strategy's collectives only.

    The gradient is that of (sum of the loss sums) / (sum of the counts) over all micro-batches of
    all ranks, whatever their sizes.

    Args:
        learner: Changed in place.
        micro_batches: This rank's micro-batches of the update; consumed.
        step: Index of the update, from 0.
        lr_factor: Learning rate as a factor of the peak, from 0 to 1.

    Returns:
        Samples consumed, over all ranks.
    """
    for group, peak in zip(learner.optimizer.param_groups, learner.peak_lrs, strict=True):
        group["lr"] = peak * lr_factor
    local_update = learner.local_sgd is not None and learner.local_sgd.is_local(step)
    if learner.compression:
        learner.compression.begin(step)
    samples = 0
    for index, micro_batch in enumerate(micro_batches):
        seed_torch(derive_seed(learner.seed, "compute", step, learner.rank, index))
        reduce = micro_batch.last and not local_update
        with learner.strategy.gradient_sync(learner.objective, reduce=reduce):
            with learner.trace.range("forward"), learner.autocast():
                root, total, count, parts = learner.objective(
                    micro_batch.batch, learner.scaler.scale
                )
            with learner.trace.range("backward"):
                # A stand-in batch takes part in the reduction but adds nothing to the gradient.
                scale = learner.sum_scale if micro_batch.weight else 0.0
                (root if scale == 1.0 else root * scale).backward()
        if micro_batch.weight:
            learner.totals.add_loss(total, count)
            learner.parts.add(parts)
        samples = micro_batch.update_samples
    with learner.trace.range("optimizer"):
        _finish_update(learner, step)
    return samples


def rehearse(learner: Learner, micro_batch: MicroBatch) -> None:
    """Make one forward and backward pass that changes nothing but DDP's bucket layout.

    DDP orders its buckets by the first backward pass. The order changes how the numbers of three or
    more ranks are added. Without this pass the first update of an attempt would differ in the last
    bit from the same update in an uninterrupted run. Every rank must call it.

    Args:
        learner: Unchanged afterwards.
        micro_batch: Any micro-batch of the training data.
    """
    buffers = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    with learner.autocast():
        root, *_ = learner.objective(micro_batch.batch, learner.scaler.scale)
    root.backward()
    learner.objective.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in learner.model.named_buffers():
            buffer.copy_(buffers[name])


def _finish_update(learner: Learner, step: int) -> None:
    """Turn the reduced gradients of sums into those of the mean, and apply them."""
    learner.scaler.unscale_(learner.optimizer)
    gradients = learner.gradients()
    count = learner.strategy.mean(cast("Tensor", learner.count_param.grad))
    learner.guard.divide(gradients, count)
    learner.totals.add_update(learner.guard.nonfinite)
    if learner.clip_norm is not None:
        learner.grad_norm = whole(get_total_norm(gradients))
        clip_grads_with_norm_(learner.params, learner.clip_norm, learner.grad_norm)
    learner.guard.step(learner.scaler)
    for param in (*learner.params, learner.count_param):
        param.grad = None
    learner.strategy.after_update()
    if learner.ema:
        learner.ema.update(step)
    if learner.local_sgd:
        learner.local_sgd.after_update(step)
