"""One update."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ddp_trainer.data.sampler import Micro
from ddp_trainer.learner import Learner
from ddp_trainer.parallel.dtensor import whole
from ddp_trainer.seeds import derive, seed_torch


def train_step(learner: Learner, micros: Iterator[Micro], step: int, lr_factor: float) -> int:
    """Makes one optimizer update, without a host sync and with the strategy's collectives only.

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
    alone = learner.local_sgd is not None and learner.local_sgd.alone(step)
    if learner.compression:
        learner.compression.begin(step)
    samples = 0
    for index, micro in enumerate(micros):
        seed_torch(derive(learner.seed, "compute", step, learner.rank, index))
        reduce = micro.last and not alone
        with learner.strategy.synchronised(learner.objective, reduce=reduce):
            with learner.trace.range("forward"), learner.autocast():
                root, total, count = learner.objective(micro.batch, learner.scaler.scale)
            with learner.trace.range("backward"):
                share = learner.share if micro.weight else 0.0
                (root if share == 1.0 else root * share).backward()
        if micro.weight:
            learner.tally.passed(total, count)
        samples = micro.update_samples
    with learner.trace.range("optimizer"):
        _finish_update(learner, step)
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
        root, _, _ = learner.objective(micro.batch, learner.scaler.scale)
    root.backward()
    learner.objective.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in learner.model.named_buffers():
            buffer.copy_(buffers[name])


def _finish_update(learner: Learner, step: int) -> None:
    learner.scaler.unscale_(learner.optimizer)
    gradients = learner.gradients()
    count = learner.strategy.mean(cast("Tensor", learner.carrier.grad))
    learner.guard.divide(gradients, count)
    learner.tally.updated(learner.guard.found)
    if learner.clip_norm is not None:
        learner.grad_norm = whole(get_total_norm(gradients))
        clip_grads_with_norm_(learner.params, learner.clip_norm, learner.grad_norm)
    learner.guard.step(learner.scaler)
    for param in (*learner.params, learner.carrier):
        param.grad = None
    learner.strategy.updated()
    if learner.ema:
        learner.ema.update(step)
    if learner.local_sgd:
        learner.local_sgd.updated(step)
