"""Check the gradients of a task's loss, and that losses of parts of a batch add up."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ddp_trainer.checkpoint.snapshot import own_tensors
from ddp_trainer.config import RunConfig
from ddp_trainer.data.evaluation import evaluation_mode
from ddp_trainer.data.loader import collate_of
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.buffers import kept_buffers
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import HasMetrics, Task, Weighted

_CLOSE = 1e-3
"""Largest relative difference that rounding can cause between two equal sums."""

Prepare = Callable[[int, int], Any]
"""Function that takes two numbers and returns a collated batch of the samples between them."""


def check_task(task: Task, config: RunConfig) -> None:
    """Check that the trainer can replace the task's model and send `collate` to workers.

    Raises:
        InputError: If the task does not allow to set its model, or if `collate` cannot be pickled.
    """
    try:
        task.model = task.model
    except AttributeError as error:
        raise InputError(
            f"task: the trainer sets the attribute model of a task, but {type(task).__name__}"
            " refuses it; a dataclass must not be frozen"
        ) from error
    if config.data.workers in {0, "auto"}:
        return
    try:
        pickle.dumps(collate_of(task))
    except Exception as error:
        raise InputError(
            "task: collate must be a function of a module or a method, because worker processes"
            f" import it (data.workers is {config.data.workers}): {error}"
        ) from error


def check_gradients(task: Task, batch: Any, config: RunConfig) -> str | None:
    """Run a forward and a backward pass, without a change of weights and buffers.

    Args:
        task: A task that was built for the CPU.
        batch: A collated batch.
        config: The settings that give strategy and seed.

    Returns:
        A sentence about weights without a gradient, which is an error with several ranks, or None.

    Raises:
        InputError: If the loss has no finite gradient, does not depend on the model, or adds
            tensors to the model.
    """
    model = task.model
    names = own_tensors(model).keys()
    seed_all(derive_seed(config.seed, "check"))
    with kept_buffers(model):
        total = task.loss(model, batch).sum
        if not total.requires_grad:
            raise InputError(
                "task: the loss has no gradient; return its sum without detach, item or no_grad,"
                " and leave some parameters trainable"
            )
        _check_names(names, own_tensors(model).keys())
        total.backward()
    trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    unused = [name for name, param in trained if param.grad is None]
    _check_finite(trained)
    model.zero_grad(set_to_none=True)
    if len(unused) == len(trained):
        raise InputError(
            "task: the loss does not depend on the model, because no parameter gets a gradient;"
            " compute it with the model that loss receives"
        )
    parallel = config.parallel
    if not unused or parallel.strategy == "fsdp2":
        return None
    if parallel.find_unused_parameters or parallel.static_graph:
        return None
    return (
        f'{len(unused)} of {len(trained)} parameters get no gradient, first "{unused[0]}": set'
        " parallel.find_unused_parameters=true, or call requires_grad_(False) in build"
    )


def _check_names(before: Iterable[str], after: Iterable[str]) -> None:
    """Refuse a model whose first pass adds tensors, because a resumed run could not load them."""
    added = sorted(set(after) - set(before))
    if added:
        raise InputError(
            f'task: the first forward pass adds "{added[0]}" to the model, so no checkpoint of it'
            " can be loaded: create it in build"
        )


def _check_finite(trained: Iterable[tuple[str, nn.Parameter]]) -> None:
    for name, param in trained:
        if param.grad is not None and not param.grad.isfinite().all():
            raise InputError(
                f'task: the gradient of "{name}" is not finite for the first batch, although its'
                " loss is: avoid sqrt, log, norm and division at zero, for example with clamp"
            )


def check_parts(task: Task, prepare: Prepare, samples: int) -> None:
    """Compare the loss and the metrics of a batch with those of its two halves.

    A loss that depends on the other samples of its batch, such as a contrastive loss, may differ.

    Args:
        task: A task that was built for the CPU.
        prepare: Function that returns a batch of some of the samples.
        samples: Number of samples. With fewer than two, the function compares nothing.

    Raises:
        InputError: If the task returns a mean in place of a sum, or the same count for each batch.
    """
    middle = samples // 2
    if not middle:
        return
    with evaluation_mode(task.model), torch.no_grad():
        whole, one, other = (
            _sums(task, prepare(first, end))
            for first, end in ((0, samples), (0, middle), (middle, samples))
        )
    for name, (total, count) in whole.items():
        if name not in one or name not in other:
            continue
        sums, counts = (one[name][0], other[name][0]), (one[name][1], other[name][1])
        if count == counts[0] == counts[1]:
            raise InputError(
                f"task: the count of {name} is {count:g} for {samples} samples and for each half of"
                " them; Weighted takes a sum and the number of samples or tokens in it"
            )
        mean = (sums[0] * counts[0] + sums[1] * counts[1]) / count if count else 0.0
        if is_close(total, mean) and not is_close(total, sum(sums)):
            raise InputError(
                f"task: the sum of {name} is a mean: {total:.4g} for {samples} samples,"
                f" {sums[0]:.4g} and {sums[1]:.4g} for its halves; Weighted takes a sum, for"
                ' example with reduction="sum", or the mean times the count'
            )


def _sums(task: Task, batch: Any) -> dict[str, tuple[float, float]]:
    """Return the sum and the count of the loss and of each metric, by name."""
    found: dict[str, object] = {"loss": task.loss(task.model, batch)}
    if isinstance(task, HasMetrics):
        metrics: object = task.metrics(task.model, batch)
        if not isinstance(metrics, Mapping):
            raise InputError(
                "task: metrics must return a dictionary of Weighted by name, not"
                f" {type(metrics).__name__}"
            )
        found |= {f'metric "{name}"': value for name, value in metrics.items()}
    pairs = {}
    for name, value in found.items():
        if not isinstance(value, Weighted) or value.sum.dim():
            raise InputError(f"task: {name} must be Weighted(sum, count) with a scalar tensor")
        pairs[name] = (value.sum.item(), value.count_tensor().item())
    return pairs


def is_close(one: float, other: float) -> bool:
    """Return whether two sums are equal except for rounding."""
    return abs(one - other) <= _CLOSE * max(abs(one), abs(other))
