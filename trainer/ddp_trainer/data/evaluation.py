"""Evaluate exactly: without padding, from sums and counts over all ranks.

Each sample counts once, on one rank. Ranks may have different numbers of micro-batches, so no
collective may run between them, and the bare model is evaluated instead of its wrapper. Sums and
counts are kept in fp64 on the device and reduced once at the end. The mean is computed from the
reduced sums, so that it does not depend on the division of the samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import MicroBatch
from ddp_trainer.errors import InputError
from ddp_trainer.ranks.collectives import broadcast_json, by_rank, sum_over_ranks
from ddp_trainer.seeds import derive_seed
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
        task: Task that provides the metrics. Without metrics, only the loss is evaluated.
        model: The bare model. A wrapper's collectives would hang, because ranks may have different
            numbers of micro-batches.
        micro_batches: This rank's share of the evaluation data.
        device: The rank's device.
        autocast: Function that creates the context of the run's precision.
        refresh_heartbeat: Function that is called after every micro-batch.

    Returns:
        The metrics by name, equal on all ranks.

    Raises:
        InputError: On every rank, if the names of the metrics differ between ranks.
    """
    totals: dict[str, torch.Tensor] = {}
    with torch.no_grad(), evaluation_mode(model):
        for micro_batch in on_device(micro_batches, device):
            with autocast():
                metrics = _metrics(task, model, micro_batch)
            for name, weighted in metrics.items():
                pair = torch.stack((weighted.sum.detach(), weighted.count_tensor())).double()
                totals[name] = totals.get(name, 0.0) + micro_batch.weight * pair
            refresh_heartbeat()
    names = sorted(totals)
    _compare_names(names, device)
    if not names:
        return {}
    table = sum_over_ranks(torch.stack([totals[name] for name in names]))
    pairs = zip(names, table.tolist(), strict=True)
    return {name: s / c if c else float("nan") for name, (s, c) in pairs}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the context; restore each module's mode afterwards.

    A task may train with parts of its model in evaluation mode, for example a frozen backbone.
    """
    modes = [(module, module.training) for module in model.modules()]
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        # A module may override train(), for example to undo what its eval() did to its weights.
        model.train(was_training)
        for module, mode in modes:
            module.training = mode


def _metrics(task: Task, model: nn.Module, micro_batch: MicroBatch) -> Mapping[str, Weighted]:
    if isinstance(task, HasMetrics):
        return task.metrics(model, micro_batch.batch)
    loss = task.loss(model, micro_batch.batch)
    parts = {name: Weighted(part, loss.count) for name, part in loss.parts.items()}
    return {**parts, "loss": loss}


def _compare_names(names: list[str], device: torch.device) -> None:
    """Refuse metric names that differ between ranks, because sums are reduced by position."""
    hashes = by_rank(derive_seed(*names), device)
    odd = next((rank for rank, value in enumerate(hashes) if value != hashes[0]), None)
    if odd is None:
        return
    first, other = (broadcast_json(names, device, rank) for rank in (0, odd))
    raise InputError(
        f"task: metrics must return the same names on every rank, but rank {odd} returned"
        f" {_listed(other)} and rank 0 {_listed(first)}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"
