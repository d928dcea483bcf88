"""Save and restore a learner's state with any strategy and world size.

`gather` turns the shards of all ranks into whole tensors in the host memory of rank 0. `restore`
distributes whole tensors in the way that this run's strategy needs. So a checkpoint does not depend
on shards, and a run may resume with another strategy or world size. Three parts are special:

- zero1 divides the optimizer's state by parameter, so rank 0 also receives the tensors that only
    other ranks have.
- If each rank has its own buffers, all of them are saved, but used only at the same world size.
  Records in memory (`checkpoint.records`) contain BatchNorm's statistics in the same way.
  Residues of compression are also saved for each rank. Another world size uses their mean.
- Only the same class of optimizer can use saved moments. Any other class is refused.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_trainer.checkpoint.snapshot import (
    Checkpoint,
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
from ddp_trainer.numerics.batch_norm import statistics_in
from ddp_trainer.parallel.compression import residues_in
from ddp_trainer.parallel.dtensor import whole
from ddp_trainer.ranks.collectives import broadcast_json, is_joined
from ddp_trainer.saved_state import SavedState
from ddp_trainer.task import HasOptimizer, Task, stateful


def gather(learner: Learner, task: Task) -> Snapshot | None:
    """Gather the whole state in host memory of rank 0. Every rank must call this.

    Args:
        learner: Learner of the task.
        task: Task, whose own state is gathered too.

    Returns:
        The snapshot on rank 0, None on the other ranks.

    Raises:
        InputError: If the task's state contains a value that is neither a tensor nor JSON.
    """
    own = own_state(learner, task)
    gathered = replace(
        own,
        model=_gathered(own.model, learner),
        optimizer=_gathered(own.optimizer, learner, union=learner.strategy.splits_optimizer),
        average=_gathered(own.average, learner),
        compression=_gathered(own.compression, learner, union=bool(len(own.compression))),
        buffers=_gathered(own.buffers, learner, union=bool(len(own.buffers))),
        task=_gathered(own.task, learner),
    )
    gather_documents(gathered, learner)
    return gathered if learner.rank == 0 else None


def gather_documents(own: Snapshot, learner: Learner) -> None:
    """Add the optimizer's values of all ranks that are no tensors. Every rank must call this."""
    if learner.strategy.splits_optimizer:
        mine = own.optimizer_rest["state"]
        merged = [broadcast_json(mine, learner.device, rank) for rank in range(_world_size())]
        own.optimizer_rest["state"] = {key: value for each in merged for key, value in each.items()}


def own_state(learner: Learner, task: Task, tensors: Tensors | None = None) -> Snapshot:
    """Return the state of learner and task on this rank, without copying tensors.

    Args:
        learner: Learner of the task.
        task: Task, whose own state is returned too.
        tensors: Parameters and buffers of the model by name, if the model cannot be asked now.

    Raises:
        InputError: If the task's state contains a value that is neither a tensor nor JSON.
    """
    own = take(learner.model, learner.optimizer, tensors)
    own.average = learner.ema.state() if learner.ema else {}
    own.compression = learner.compression.state(learner.rank) if learner.compression else {}
    own.buffers = learner.buffers.own(learner.rank) if learner.buffers else {}
    own.task, own.task_rest = task_state(task)
    return own


def task_state(task: Task) -> tuple[Tensors, Any]:
    """Return the tensors and the JSON document of the task's own state, or None.

    Raises:
        InputError: If a value is neither a tensor nor JSON.
    """
    owner = stateful(task)
    return ({}, None) if owner is None else encode(owner.state_dict(), "task")


def unused_state(learner: Learner, task: Task, saved: Checkpoint | None) -> list[str]:
    """Return one sentence for each saved type of state that is missing or that is not usable."""
    if saved is None:
        return []
    found = (
        _missing_task_state(task, saved.snapshot),
        _dropped_buffers(learner, saved),
        _dropped_residues(learner, saved.snapshot),
    )
    return [sentence for sentence in found if sentence]


def _missing_task_state(task: Task, saved: Snapshot) -> str | None:
    """Return a sentence if only the task or only the checkpoint has task state."""
    owner = stateful(task)
    if (owner is None) == (saved.task_rest is None):
        return None
    if owner is None:
        return "the checkpoint has state of the task, but the task has no load_state_dict for it"
    return "the checkpoint has no state of the task, so the task keeps its initial state"


def _dropped_buffers(learner: Learner, saved: Checkpoint) -> str | None:
    """Return a sentence if this attempt cannot use the saved buffers of single ranks."""
    buffers = learner.buffers
    kept = buffers if buffers is not None and buffers.policy == "per_rank" else None
    before, world_size = saved.state.world_size, _world_size()
    statistics = {slot.name for slot in statistics_in(learner.model)}
    if all(name.partition("/")[2] in statistics for name in saved.snapshot.buffers):
        # One rank saves its buffers with the model, and not once more for the rank.
        if before > 1 or kept is None or not kept.names:
            return None
        return (
            f"the checkpoint has the buffers of one rank, but now there are {world_size} ranks"
            " (parallel.buffers is per_rank): all ranks start with these buffers"
        )
    if kept is not None and before == world_size:
        return None
    counted = kept is not None or world_size == 1
    why = f"now there are {world_size} ranks" if counted else "now they share them"
    return (
        f"the checkpoint has the buffers of each of {before} ranks (parallel.buffers was per_rank),"
        f" but {why}: all ranks start with those of one rank"
    )


def _dropped_residues(learner: Learner, saved: Snapshot) -> str | None:
    """Return a sentence if this attempt cannot use the saved compression residues."""
    if learner.compression is not None and learner.compression.has_feedback:
        return None
    if not residues_in(saved.compression):
        return None
    return (
        "the checkpoint has residues of powersgd, but this attempt does not use powersgd: they are"
        " dropped, so the weights miss what powersgd had not sent yet"
    )


def restore(learner: Learner, task: Task, saved: Checkpoint) -> None:
    """Restore saved state in place. Every rank must call this with the same checkpoint.

    Args:
        learner: A learner of the task.
        task: The task. If it has its own optimizer, the saved hyperparameters are restored.
            Otherwise those of the config stay.
        saved: Whole checkpoint.

    Raises:
        InputError: If names or shapes differ, or if another optimizer wrote the state.
    """
    configured = not isinstance(task, HasOptimizer)
    state, own = saved.state, saved.snapshot
    _check_optimizer(learner, state, configured=configured)
    put_model(learner.model, own.model)
    put_optimizer(
        learner.model,
        learner.optimizer,
        own.optimizer,
        own.optimizer_rest,
        keep_groups=configured,
    )
    owner = stateful(task)
    if owner is not None and own.task_rest is not None:
        owner.load_state_dict(decode(dict(own.task.items()), own.task_rest))
    if learner.ema:
        learner.ema.load(own.average)
    if state.scaler and learner.scaler.is_enabled():
        learner.scaler.load_state_dict(state.scaler)
    world_size = _world_size()
    kept = _own_buffers(learner, own.buffers) if state.world_size == world_size else {}
    _put_statistics(learner, kept)
    if learner.buffers:
        per_rank = learner.buffers.policy == "per_rank"
        learner.buffers.load(state.live_buffers, kept if per_rank else {}, learner.rank)
    if learner.compression:
        learner.compression.load(
            own.compression,
            learner.rank,
            world_size=world_size,
            saved_world_size=state.world_size,
        )
        if state.compression_on:
            learner.compression.switched_on = True


def _own_buffers(learner: Learner, saved: NamedTensors) -> Tensors:
    """Return the saved buffers of this rank by `<rank>/<name>`."""
    return {n: tensor for n, tensor in saved.items() if n.startswith(f"{learner.rank}/")}


@torch.no_grad()
def _put_statistics(learner: Learner, own: Tensors) -> None:
    """Load this rank's running statistics of BatchNorm, which only records have."""
    for slot in statistics_in(learner.model):
        saved = own.get(f"{learner.rank}/{slot.name}")
        if saved is not None:
            slot.tensor.copy_(saved)


def _world_size() -> int:
    return dist.get_world_size() if is_joined() else 1


def _check_optimizer(learner: Learner, state: SavedState, *, configured: bool) -> None:
    """Refuse the state of another optimizer class, because its moments have another meaning."""
    found, now = state.optimizer, type(learner.optimizer).__name__
    if found is None and configured:
        # Older releases stored only the setting. The bundled classes have its name.
        found = state.config.optimizer.name
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
        learner: The learner that the tensors belong to.
        union: Whether other ranks have tensors that rank 0 does not have.
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
    """Send the tensors of rank `src` that rank 0 does not have to rank 0."""
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
            sent = own[name].detach().to(device).contiguous()
            dist.send(_as_bytes(sent), dst=0)
        elif rank == 0:
            buffer = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            dist.recv(_as_bytes(buffer), src=src)
            gathered[name] = _host_copy(buffer)


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return a view of a contiguous tensor as bytes, because NCCL does not support all types."""
    return tensor.reshape(-1).view(torch.uint8)


def _host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
