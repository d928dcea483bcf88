"""A minimal training loop with DDP's defaults, as a user would write it by hand.

`bench` compares the trainer's own loop with this loop. The minimal loop has no schedule, clipping,
checkpoints, evaluation or agreement on stopping. It reads only the training loss.
"""

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.numerics.optimizer import build_optimizer
from ddp_trainer.numerics.precision import grad_scaler
from ddp_trainer.ranks.collectives import is_joined
from ddp_trainer.run.run import Run
from ddp_trainer.task import HasOptimizer, Weighted


class _MeanLoss(nn.Module):
    """Module that computes the mean loss of a task, so that DDP can wrap it."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Weighted]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""
        weighted = self._loss(self.model, batch)
        mean: Tensor = weighted.sum / weighted.count
        return mean


def minimal_loop(run: Run, micro_batches: Iterable[MicroBatch]) -> None:
    """Train a copy of a run's model with the run's precision and optimizer.

    Args:
        run: An opened run, which stays unchanged.
        micro_batches: Micro-batches in host memory, as the run's data loader returns them.
    """
    task, config, device = run.task, run.config, run.learner.device
    model = copy.deepcopy(run.learner.model)
    options = config.compile_options()
    if options is not None:
        model.compile(**options)
    params = [param for param in model.parameters() if param.requires_grad]
    if isinstance(task, HasOptimizer):
        optimizer = task.optimizer(params)
    else:
        optimizer = build_optimizer(params, config.optimizer)
    scaler = grad_scaler(config.precision, device)
    objective: nn.Module = _MeanLoss(model, task.loss)
    without_reduction: Callable[[], AbstractContextManager[object]] = nullcontext
    if is_joined():
        devices = [device] if device.type == "cuda" else None
        objective = ddp = DistributedDataParallel(objective, device_ids=devices)
        without_reduction = ddp.no_sync
    for step, micro_batch in enumerate(on_device(micro_batches, device)):
        with nullcontext() if micro_batch.last else without_reduction():
            with run.learner.autocast():
                loss = objective(micro_batch.batch)
            scaler.scale(loss).backward()
        if micro_batch.last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if step % config.log.every_steps == 0:
            loss.item()
