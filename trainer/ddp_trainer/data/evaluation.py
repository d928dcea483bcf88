"""Exact evaluation: no padding, sums and counts over all ranks, one reduction at the end."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.ranks.collectives import sum_over_ranks
from ddp_trainer.task import HasMetrics, Task, Weighted


def evaluate(
    task: Task,
    model: nn.Module,
    micro_batches: Iterable[MicroBatch],
    *,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    refresh_heartbeat: Callable[[], None],
) -> dict[str, float]:
    """Return the mean of each metric over the evaluation data. Every rank must call it.

    Args:
        task: Provides the metrics. Without metrics the loss is the only one.
        model: The bare model. A wrapper's collectives would hang, because ranks may have different
            numbers of micro-batches.
        micro_batches: This rank's share of the evaluation data.
        device: The rank's device.
        autocast: Creates the context of the run's precision.
        refresh_heartbeat: Called after every micro-batch.

    Returns:
        The metrics by name, equal on all ranks.
    """
    totals: dict[str, torch.Tensor] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for micro_batch in on_device(micro_batches, device):
            with autocast():
                metrics = _metrics(task, model, micro_batch)
            for name, weighted in metrics.items():
                pair = torch.stack((weighted.sum.detach(), weighted.count_tensor())).double()
                totals[name] = totals.get(name, 0.0) + micro_batch.weight * pair
            refresh_heartbeat()
    model.train(was_training)
    names = sorted(totals)
    table = sum_over_ranks(torch.stack([totals[name] for name in names]))
    pairs = zip(names, table.tolist(), strict=True)
    return {name: s / c if c else float("nan") for name, (s, c) in pairs}


def _metrics(task: Task, model: nn.Module, micro_batch: MicroBatch) -> Mapping[str, Weighted]:
    if isinstance(task, HasMetrics):
        return task.metrics(model, micro_batch.batch)
    loss = task.loss(model, micro_batch.batch)
    parts = {name: Weighted(part, loss.count) for name, part in loss.parts.items()}
    return {**parts, "loss": loss}
