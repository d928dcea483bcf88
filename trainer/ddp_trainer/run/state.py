"""Saving and restoring of a learner's state, with any strategy and world size."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.checkpoint.snapshot import (
    Snapshot,
    Tensors,
    put_model,
    put_optimizer,
    take,
)
from ddp_trainer.checkpoint.tree import decode, encode
from ddp_trainer.errors import InputError
from ddp_trainer.learner import Learner
from ddp_trainer.names import NamedTensors
from ddp_trainer.parallel.dtensor import whole
from ddp_trainer.ranks.collectives import broadcast_json, is_joined
from ddp_trainer.task import HasOptimizer, Task, stateful


def gather(learner: Learner, task: Task) -> Snapshot | None:
    """Gather the whole state in host memory of rank 0. Every rank must call it.

    Args:
        learner: Learner of the task.
        task: Task, whose own state is part of the whole.

    Returns:
        The snapshot on rank 0, None on the other ranks.

    Raises:
        InputError: If the task holds state that is neither tensors nor JSON values.
    """
    own = take(learner.model, learner.optimizer)
    own.average = learner.ema.state() if learner.ema else {}
    own.compression = learner.compression.state(learner.rank) if learner.compression else {}
    own.task, own.task_rest = task_state(task)
    gathered = replace(
        own,
        model=_gathered(own.model, learner),
        optimizer=_gathered(own.optimizer, learner, union=learner.strategy.splits_optimizer),
        average=_gathered(own.average, learner),
        compression=_gathered(own.compression, learner, union=bool(len(own.compression))),
        task=_gathered(own.task, learner),
    )
    if learner.strategy.splits_optimizer:
        for rank in range(1, dist.get_world_size()):
            plain = broadcast_json(own.optimizer_rest["state"], learner.device, rank)
            gathered.optimizer_rest["state"] |= plain
    return gathered if learner.rank == 0 else None


def learner_state(learner: Learner) -> dict[str, Any]:
    """Return the part of the learner's state that is stored as JSON."""
    switched_on = learner.compression is None or learner.compression.switched_on
    return {
        "scaler": learner.scaler.state_dict(),
        "compression_on": switched_on,
        "optimizer": type(learner.optimizer).__name__,
    }


def task_state(task: Task) -> tuple[Tensors, Any]:
    """Return the tensors and the JSON document of the task's own state. None without state.

    Raises:
        InputError: If a value is neither a tensor nor a JSON value.
    """
    owner = stateful(task)
    return ({}, None) if owner is None else encode(owner.state_dict(), "task")


def missing_task_state(task: Task, saved: Snapshot | None) -> str | None:
    """Return a sentence if only one of task and checkpoint has state of the task."""
    owner = stateful(task)
    if saved is None or (owner is None) == (saved.task_rest is None):
        return None
    if owner is None:
        return "the checkpoint has state of the task, but the task has no load_state_dict for it"
    return "the checkpoint has no state of the task, so the task keeps its initial state"


def restore(learner: Learner, task: Task, saved: Snapshot) -> None:
    """Restore saved state, in place. Every rank must call it with the same snapshot.

    Args:
        learner: A learner of the task.
        task: The task. Its own optimizer gets the saved hyperparameters, that of the config keeps
            those of the config.
        saved: Whole snapshot.

    Raises:
        InputError: If names or shapes differ, or if another optimizer wrote the state.
    """
    configured = not isinstance(task, HasOptimizer)
    _check_optimizer(learner, saved.state, configured=configured)
    put_model(learner.model, saved.model)
    put_optimizer(
        learner.model,
        learner.optimizer,
        saved.optimizer,
        saved.optimizer_rest,
        keep_groups=configured,
    )
    owner = stateful(task)
    if owner is not None and saved.task_rest is not None:
        owner.load_state_dict(decode(dict(saved.task.items()), saved.task_rest))
    if learner.ema:
        learner.ema.load(saved.average)
    if saved.state["scaler"] and learner.scaler.is_enabled():
        learner.scaler.load_state_dict(saved.state["scaler"])
    if learner.compression:
        world_size = dist.get_world_size() if is_joined() else 1
        same_world = saved.state["world_size"] == world_size
        learner.compression.load(saved.compression, learner.rank, same_world=same_world)
        if saved.state.get("compression_on"):
            learner.compression.switched_on = True


def _check_optimizer(learner: Learner, state: dict[str, Any], *, configured: bool) -> None:
    """Refuse the state of another kind of optimizer, because its moments have another meaning."""
    found, now = state.get("optimizer"), type(learner.optimizer).__name__
    if found is None and configured:
        # Older releases stored only the setting. The bundled classes have its name.
        found = state["config"]["optimizer"]["name"]
    if found is None or found.lower() == now.lower():
        return
    raise InputError(
        f"checkpoint: it was written with the optimizer {found}, now it is {now}; a resumed run"
        " needs the same optimizer, because the checkpoint holds its moments"
    )


def _gathered(tensors: NamedTensors, learner: Learner, *, union: bool = False) -> Tensors:
    """Gather whole tensors in host memory of rank 0. Other ranks get an empty dictionary.

    Args:
        tensors: This rank's tensors, which may be shards.
        learner: The learner that they belong to.
        union: Whether other ranks hold tensors under names that rank 0 lacks.
    """
    first = learner.rank == 0
    gathered: Tensors = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if first:
            gathered[name] = _host_copy(full)
    if union:
        for rank in range(1, dist.get_world_size()):
            _receive_missing(gathered, dict(tensors.items()), rank, learner.device)
    return gathered


def _receive_missing(gathered: Tensors, own: Tensors, src: int, device: torch.device) -> None:
    """Send to rank 0 the tensors of rank `src` that rank 0 lacks."""
    described: Any = [
        [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        for name, tensor in own.items()
    ]
    described = broadcast_json(described, device, src)
    wanted = broadcast_json([name for name, _, _ in described if name not in gathered], device)
    rank = dist.get_rank()
    for name, shape, dtype in described:
        if name not in wanted:
            continue
        if rank == src:
            dist.send(own[name].detach().to(device).contiguous(), dst=0)
        elif rank == 0:
            buffer = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            dist.recv(buffer, src=src)
            gathered[name] = _host_copy(buffer)


def _host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
