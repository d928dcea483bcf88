"""BatchNorm under data parallelism: each rank normalises by its own batch.

Only evaluation uses running statistics. One reduction before each evaluation and checkpoint makes
them equal on all ranks. DDP would broadcast each buffer at each update instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddp_trainer.ranks.collectives import is_joined, sum_over_ranks


def norms_in(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm modules of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers, such as running statistics, at the end of the context."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


def average_norm_statistics(model: nn.Module, world_size: int) -> None:
    """Replace running means and variances by their averages over ranks, in place.

    Every rank must call it.

    Args:
        model: The bare model.
        world_size: Number of ranks.
    """
    statistics = [
        buffer
        for module in norms_in(model)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not statistics or not is_joined():
        return
    flat = sum_over_ranks(torch.cat([buffer.flatten() for buffer in statistics])) / world_size
    parts = flat.split([buffer.numel() for buffer in statistics])
    for buffer, part in zip(statistics, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
