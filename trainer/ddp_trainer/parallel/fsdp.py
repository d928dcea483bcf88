"""`fsdp2`: weights, gradients and optimizer state are split over ranks.

A weight is gathered when its block computes and dropped afterwards (Zhao et al. 2023,
arXiv:2304.11277; here by torch's `fully_shard`). The carrier of the count stays whole, so it costs
two reductions of one number per update that ddp does not need.
"""

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ddp_trainer.parallel.dtensor import is_split, local
from ddp_trainer.parallel.objective import Objective
from ddp_trainer.parallel.strategy import Strategy

REPEATED = 2
"""A container with at least so many modules of one class holds blocks."""


class FullySharded(Strategy):
    """Splits each repeated block, and what is left of the model as one."""

    def wrap(self, objective: Objective, *, compiled: bool) -> nn.Module:
        """Moves the model to the device and splits it, a block at a time."""
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        blocks = repeated_blocks(objective.model)
        for block in blocks:
            self._place(block)
            if compiled:
                block.compile(dynamic=False)
            fully_shard(block, mesh=mesh)
        self._place(objective)
        if compiled and not blocks:
            objective.model.compile(dynamic=False)
        fully_shard(objective.model, mesh=mesh)
        return objective

    def _place(self, part: nn.Module) -> None:
        """Moves a part to the device with rank 0's values, unless it is split already."""
        part.to(self.device)
        for tensor in (*part.parameters(), *part.buffers()):
            if not is_split(tensor):
                dist.broadcast(tensor.detach(), src=0)

    def synchronised(self, wrapped: nn.Module, *, reduce: bool) -> AbstractContextManager[object]:
        """Reduces the gradients in the backward pass, or adds to whole ones."""
        model = wrapped.model
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(reduce)
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """Averages over ranks."""
        dist.all_reduce(value)
        return value / dist.get_world_size()

    def memory(self, gradients: list[Tensor]) -> list[Tensor]:
        """What each gradient has here."""
        return [local(gradient) for gradient in gradients]

    def any(self, flag: Tensor) -> None:
        """Each rank has seen its part of the gradients only."""
        dist.all_reduce(flag, dist.ReduceOp.MAX)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that stand in a row with others of their class, as transformer blocks.

    A block that shares a parameter with the rest of the model is none: it cannot be gathered alone.
    """
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        members = list(module)
        if len(members) >= REPEATED and len({type(member) for member in members}) == 1:
            blocks += members
            inside |= {part for member in members for part in member.modules()}
    uses: dict[int, int] = {}
    for param in (p for part in model.modules() for p in part.parameters(recurse=False)):
        uses[id(param)] = uses.get(id(param), 0) + 1
    return [
        block
        for block in blocks
        if any(True for _ in block.parameters())
        and all(
            uses[id(param)]
            == sum(
                1
                for part in block.modules()
                for own in part.parameters(recurse=False)
                if own is param
            )
            for param in block.parameters()
        )
    ]
