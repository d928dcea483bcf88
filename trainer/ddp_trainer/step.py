"""One update: forward and backward passes, reduction, clipping, optimizer step.

A task returns the sum of its losses and their count. The gradient of the mean over all samples is
(gradient of the sum) / (count over all ranks). So the passes accumulate gradients of sums. The
count is reduced together with them, as the gradient of one more parameter (`parallel.objective`):

1. Run a forward and a backward pass for each micro-batch. Only the last one reduces gradients over
   the ranks.
2. Divide the reduced gradients by the reduced count. The same kernel finds values that are not
   finite (`numerics.guard`).
3. Clip the gradients, and step the optimizer unless the guard skips the step. A skipped update
   also leaves no trace in the buffers, such as BatchNorm's statistics.
4. Update the moving average, local SGD and the live buffers from the new weights.

A step never waits for the device, unless the guard must decide on the host. So the host can queue
work ahead of a GPU.
"""

from collections.abc import Iterator
from typing import cast

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.learner import Learner
from ddp_trainer.numerics.buffers import BufferCopy, kept_buffers
from ddp_trainer.parallel.dtensor import whole
from ddp_trainer.parallel.objective import backward
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_wire.activity import Activity


def train_step(
    learner: Learner, micro_batches: Iterator[MicroBatch], step: int, lr_factor: float
) -> int:
    """Make one optimizer update, without a host sync and with no collective but the strategy's.

    The update follows the gradient of (sum of the loss sums) / (sum of the counts), over all
    micro-batches of all ranks. Micro-batches may differ in size.

    Args:
        learner: Learner, which the update changes in place.
        micro_batches: Iterator over this rank's micro-batches of the update. The function consumes
            it.
        step: Index of the update, from 0.
        lr_factor: Learning rate as a fraction of the peak, from 0 to 1.

    Returns:
        Number of samples that all ranks together consumed.

    Raises:
        InputError: If the loss breaks a rule of the task's interface.
    """
    for group, peak in zip(learner.optimizer.param_groups, learner.peak_lrs, strict=True):
        group["lr"] = peak * lr_factor
    local_update = learner.local_sgd is not None and learner.local_sgd.is_local(step)
    buffers = _copy_buffers(learner)
    with learner.gate:  # Until the last reduction has ended, only gradients and buffers change.
        samples = _make_passes(learner, micro_batches, step, local_update=local_update)
        learner.finish_passes()
    learner.trace.enter(Activity.OPTIMIZER)
    _finish_update(learner, step, buffers)
    return samples


def _copy_buffers(learner: Learner) -> BufferCopy | None:
    """Copy the buffers that the passes of an update change, if a skipped update restores them."""
    if learner.guard.policy != "skip":
        return None
    slots = learner.shapes.slots(learner.buffers)
    return BufferCopy(slots, learner.guard.nonfinite.device) if slots else None


def _make_passes(
    learner: Learner, micro_batches: Iterator[MicroBatch], step: int, *, local_update: bool
) -> int:
    """Make the passes of an update, and return its samples over all ranks."""
    samples = 0
    for index, micro_batch in enumerate(micro_batches):
        # Also Python and NumPy (5 µs): the loss may mix samples by numbers from any generator.
        seed_all(derive_seed(learner.seed, "compute", step, learner.rank, index))
        samples = micro_batch.update_samples
        reduce = micro_batch.last and not local_update
        if reduce and learner.compression:
            learner.compression.begin(step, samples, learner.scaler.scale)
        if micro_batch.weight:
            total, count, parts = _accumulate(learner, micro_batch, reduce=reduce)
            learner.totals.add_loss(total, count)
            learner.parts.add(parts, total)
        else:
            # BatchNorm must not count the sample of a placeholder.
            with kept_buffers(learner.model):
                _accumulate(learner, micro_batch, reduce=reduce)
    if not local_update:
        learner.strategy.check_reduced(learner.objective)
    return samples


def _accumulate(
    learner: Learner, micro_batch: MicroBatch, *, reduce: bool
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Make a forward and a backward pass, and return the loss sum, its count and its parts."""
    with learner.strategy.gradient_sync(learner.objective, reduce=reduce):
        learner.trace.enter(Activity.FORWARD)
        with learner.autocast():
            roots, total, count, parts = learner.objective(micro_batch.batch, learner.scaler.scale)
        learner.trace.enter(Activity.BACKWARD)
        # A placeholder takes part in the reduction but adds nothing to the gradient.
        backward(roots, count, learner.sum_scale if micro_batch.weight else 0.0)
    return total, count, parts


def rehearse(learner: Learner, micro_batch: MicroBatch) -> None:
    """Make one forward and backward pass that changes nothing but DDP's bucket layout.

    DDP orders its buckets by the first backward pass. With three or more ranks, the order of the
    buckets changes the order of summation. Without this pass the first update of an attempt would
    differ in the last bit from the same update in an uninterrupted run. The pass also finds the
    buffers that the loss changes. Every rank must call this function.

    Args:
        learner: Learner, which stays unchanged.
        micro_batch: Any micro-batch of the training data.
    """
    with kept_buffers(learner.model):
        with learner.autocast():
            roots, _, count, _ = learner.objective(micro_batch.batch, learner.scaler.scale)
        backward(roots, count)
        learner.strategy.check_reduced(learner.objective)
        if learner.buffers:
            learner.buffers.rehearsed()
    learner.strategy.drop_unused(learner.params)
    learner.objective.zero_grad(set_to_none=True)


def _finish_update(learner: Learner, step: int, buffers: BufferCopy | None) -> None:
    """Divide the reduced gradients of the sums by the count, and apply them.

    Args:
        learner: Learner after the passes of the update.
        step: Index of the update, from 0.
        buffers: Copy of the buffers before the passes. None if a skipped update keeps its buffers.
    """
    learner.strategy.drop_unused(learner.params)
    learner.scaler.unscale_(learner.optimizer)
    gradients = learner.gradients()
    count = learner.strategy.mean(cast("Tensor", learner.count_param.grad))
    learner.guard.divide(gradients, count)
    if learner.compression:
        learner.compression.finish(count, learner.guard.nonfinite)
    if buffers:
        buffers.restore_if(learner.guard.nonfinite)
    learner.totals.add_update(learner.guard.nonfinite)
    learner.parts.add_update(learner.guard.nonfinite)
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
    if learner.buffers:
        learner.buffers.after_update(
            local=learner.local_sgd is not None and learner.local_sgd.apart
        )
