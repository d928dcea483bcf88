"""BatchNorm under data parallelism: each rank normalises by its own batch.

Only evaluation uses running statistics. So one reduction before each evaluation and checkpoint
makes them equal on all ranks. DDP's default is a broadcast of each buffer at each update.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddp_trainer.numerics.buffers import Slot, saved_slots
from ddp_trainer.ranks.collectives import is_joined, sum_over_ranks


def norms_in(model: nn.Module) -> list[_BatchNorm]:
    """Return all BatchNorm modules of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def statistics_in(model: nn.Module) -> list[Slot]:
    """Return the saved running statistics of which each rank has its own."""
    return [slot for slot in saved_slots(model) if is_statistic(slot)]


def is_statistic(slot: Slot) -> bool:
    """Return whether a buffer is a running statistic of which each rank has its own."""
    return isinstance(slot.module, _BatchNorm) and not isinstance(slot.module, nn.SyncBatchNorm)


def average_norm_statistics(
    model: nn.Module, world_size: int, waiting: AbstractContextManager[None] | None = None
) -> None:
    """Replace running means and variances by their averages over ranks, in place.

    Every rank must call it.

    Args:
        model: The bare model.
        world_size: Number of ranks.
        waiting: Context of the wait for the other ranks, in which nothing changes.
    """
    statistics = [
        buffer
        for module in norms_in(model)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not statistics or not is_joined():
        return
    with waiting or nullcontext():
        flat = sum_over_ranks(torch.cat([buffer.flatten() for buffer in statistics])) / world_size
    parts = flat.split([buffer.numel() for buffer in statistics])
    for buffer, part in zip(statistics, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
