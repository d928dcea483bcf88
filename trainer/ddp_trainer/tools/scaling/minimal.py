"""The loop that one writes by hand: DDP with its defaults, and nothing that is not needed.

It is the measure of what the product's own loop costs: no schedule, no clipping, no checkpoints, no
evaluation, no agreement on stopping, no report but a reading of the loss.
"""

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import Micro
from ddp_trainer.numerics.optimizer import build_optimizer
from ddp_trainer.numerics.precision import grad_scaler
from ddp_trainer.ranks.collectives import is_joined
from ddp_trainer.run.run import Run
from ddp_trainer.task import HasOptimizer, Weighted


class _MeanLoss(nn.Module):
    """A task's loss as a wrapped forward pass."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Weighted]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        """The mean loss of a batch."""
        weighted = self._loss(self.model, batch)
        mean: Tensor = weighted.sum / weighted.count
        return mean


def minimal_loop(run: Run, micros: Iterable[Micro]) -> None:
    """Trains a copy of a run's model on `micros`, with the run's arithmetic and update rule.

    Args:
        run: Open, and left as it is.
        micros: In host memory, as the run's own loader gives them.
    """
    task, config, device = run.task, run.config, run.learner.device
    model = copy.deepcopy(run.learner.model)
    if config.compile:
        model.compile(dynamic=False)
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
    for step, micro in enumerate(on_device(micros, device)):
        with nullcontext() if micro.last else without_reduction():
            with run.learner.autocast():
                loss = objective(micro.batch)
            scaler.scale(loss).backward()
        if micro.last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if step % config.log.every_steps == 0:
            loss.item()
