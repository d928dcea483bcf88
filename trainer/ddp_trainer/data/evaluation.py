"""Exact evaluation: no padding, sums and counts over all ranks, one reduction at the end."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import Micro
from ddp_trainer.ranks.collectives import sum_over_ranks
from ddp_trainer.task import HasMetrics, Task, Weighted


def evaluate(
    task: Task,
    model: nn.Module,
    micros: Iterable[Micro],
    *,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    alive: Callable[[], None],
) -> dict[str, float]:
    """Mean of each metric over the evaluation data. Every rank must call it.

    Args:
        task: Gives the metrics, or else its loss is the only one.
        model: The bare model: a wrapper's collectives would not be matched, as ranks may have
            different numbers of batches.
        micros: This rank's share.
        device: Where to compute.
        autocast: Makes the context of the run's precision.
        alive: Called after every batch.

    Returns:
        The metrics by name, equal on all ranks.
    """
    totals: dict[str, torch.Tensor] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for micro in on_device(micros, device):
            with autocast():
                found = _metrics(task, model, micro)
            for name, weighted in found.items():
                pair = torch.stack((weighted.sum.detach(), weighted.count_tensor())).double()
                totals[name] = totals.get(name, 0.0) + micro.weight * pair
            alive()
    model.train(was_training)
    names = sorted(totals)
    table = sum_over_ranks(torch.stack([totals[name] for name in names]))
    pairs = zip(names, table.tolist(), strict=True)
    return {name: s / c if c else float("nan") for name, (s, c) in pairs}


def _metrics(task: Task, model: nn.Module, micro: Micro) -> Mapping[str, Weighted]:
    if isinstance(task, HasMetrics):
        return task.metrics(model, micro.batch)
    return {"loss": task.loss(model, micro.batch)}
