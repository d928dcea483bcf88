"""Compute the loss of one batch twice, to find what the loss depends on and what it changes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.numerics.buffers import BufferShapes, kept_buffers, slots_in
from ddp_trainer.seeds import derive_seed, seed_all
from ddp_trainer.task import Task, stateful
from ddp_trainer.tools.check.step import is_close


@dataclass(frozen=True, slots=True)
class Passes:
    """Findings of two passes over one batch."""

    warnings: list[str]
    buffers: list[str]
    """Names of the buffers that the loss changes, except those of BatchNorm."""


def watch_passes(task: Task, batch: Any, config: RunConfig) -> Passes:
    """Compute the loss twice with the same seeds. Weights and buffers stay unchanged.

    Args:
        task: A task that was built for the CPU.
        batch: A collated batch.
        config: The settings that give strategy and seed.

    Raises:
        InputError: If the loss changes the shape of a buffer, or changes a parameter that the
            strategy splits.
    """
    model = task.model
    norms = {id(norm) for norm in norms_in(model)}
    slots = [slot for slot in slots_in(model) if id(slot.module) not in norms]
    shapes = BufferShapes(model)
    with kept_buffers(model):
        before = [slot.tensor.clone() for slot in slots]
        first = _loss(task, batch, config)
        shapes.check()
        pairs = zip(slots, before, strict=True)
        changed = [slot.name for slot, value in pairs if not torch.equal(slot.tensor, value)]
    with kept_buffers(model):
        second = _loss(task, batch, config)
    _check_split(model, changed, config)
    warnings = (_strays(model, first), _difference(task, first.item(), second.item()))
    return Passes([sentence for sentence in warnings if sentence], changed)


def _loss(task: Task, batch: Any, config: RunConfig) -> Tensor:
    seed_all(derive_seed(config.seed, "check"))
    return task.loss(task.model, batch).sum


def _difference(task: Task, first: float, second: float) -> str | None:
    """Return a sentence if two losses differ, unless the task may have changed its own state."""
    if stateful(task) or is_close(first, second):
        return None
    return (
        f"the loss of the same batch is {first:.6g} and then {second:.6g} with the same seeds, so a"
        " resumed run gets other weights: let it draw from the global generators of random, numpy"
        " or torch, which the trainer seeds, and keep what it changes in buffers or in the state of"
        " the task"
    )


def _check_split(model: nn.Module, changed: list[str], config: RunConfig) -> None:
    params = dict(model.named_parameters())
    split = [name for name in changed if name in params]
    if split and config.parallel.strategy == "fsdp2":
        raise InputError(
            f'task: the loss changes the frozen parameter "{split[0]}", which fsdp2 splits:'
            " register it as a buffer, or use parallel.strategy ddp or zero1"
        )


def _strays(model: nn.Module, total: Tensor) -> str | None:
    """Return a sentence if the loss depends on parameters that the model does not list."""
    own = {id(param) for param in model.parameters()}
    seen, nodes, strays = set(), [total.grad_fn], []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
            strays.append(leaf)
    if not strays:
        return None
    return (
        f"the loss depends on {len(strays)} parameters that are not in the model, first one of"
        f" shape {tuple(strays[0].shape)}, so they are not trained: keep layers in nn.ModuleList or"
        " nn.ModuleDict, make other modules part of task.model, and call requires_grad_(False) on"
        " those that must stay as they are"
    )
