"""Divide this rank's state into what every rank could write, and what only this rank holds.

Only this rank holds its rows of split tensors (fsdp2), the moments of the parameters that it owns
(zero1), its residues of powersgd, its buffers with `parallel.buffers: per_rank`, and its running
statistics of BatchNorm.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoint.records import Division
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.names import NamedTensors
from ddp_trainer.parallel.compression import is_residue
from ddp_trainer.parallel.dtensor import is_split, local


@dataclass(frozen=True, slots=True)
class Divided:
    """The state of a rank, in two parts that share no tensor."""

    division: Division
    common: Snapshot
    own: Snapshot


@torch.no_grad()
def divide(state: Snapshot, *, splits_optimizer: bool) -> Divided:
    """Divide a state without copying tensors.

    Args:
        state: The state on this rank, which may contain split tensors.
        splits_optimizer: Whether each rank has the optimizer state of different parameters.
    """
    model, own_model = _parted(state.model)
    optimizer, own_optimizer = _parted(state.optimizer)
    average, own_average = _parted(state.average)
    rest: dict[str, Any] = {"state": {}, "groups": []}
    if splits_optimizer:
        optimizer, own_optimizer = {}, {**optimizer, **own_optimizer}
        rest["state"] = state.optimizer_rest["state"]
    compression = dict(state.compression.items())
    residues = {name: tensor for name, tensor in compression.items() if is_residue(name)}
    own = Snapshot(
        own_model,
        own_optimizer,
        rest,
        average=own_average,
        compression=residues,
        buffers=state.buffers,
    )
    common = Snapshot(
        model,
        optimizer,
        state.optimizer_rest | ({"state": {}} if splits_optimizer else {}),
        average=average,
        compression={n: tensor for n, tensor in compression.items() if n not in residues},
        task=state.task,
        task_rest=state.task_rest,
    )
    if splits_optimizer or own_model or own_optimizer:
        return Divided("all", common, own)
    return Divided("own" if residues or len(state.buffers) else "whole", common, own)


def _parted(tensors: NamedTensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors that are equal on all ranks, and this rank's rows of the others."""
    equal, rows = {}, {}
    for name, tensor in tensors.items():
        if is_split(tensor):
            rows[name] = local(tensor.detach())
        else:
            equal[name] = tensor
    return equal, rows
