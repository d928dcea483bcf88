"""The strategy `zero1`: like ddp, but only one rank has a parameter's optimizer state.

Stage 1 of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): a rank updates the parameters that it
owns and broadcasts them. The optimizer object is the same, without the parameters of other ranks in
its groups. So it works with any optimizer that builds its state in its first update.
"""

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.parallel.ddp import Replicated


class SplitOptimizer(Replicated):
    """Strategy with DDP, in which one rank owns each parameter and its optimizer state."""

    splits_optimizer = True
    _buffers: list[tuple[int, Tensor]]

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep in each group only the parameters that this rank owns.

        The parameters of each owner become views of one buffer, so that one broadcast per owner
        sends all of them without a copy.

        Raises:
            InputError: If the optimizer already has state.
        """
        if optimizer.state:
            name = type(optimizer).__name__
            raise InputError(
                f"config: parallel.strategy zero1 needs an optimizer without state before its first"
                f" update, but {name} has state"
            )
        params = [param for group in optimizer.param_groups for param in group["params"]]
        owner = owners([param.numel() for param in params], dist.get_world_size())
        owned: dict[tuple[int, torch.dtype], list[nn.Parameter]] = defaultdict(list)
        for param, rank in zip(params, owner, strict=True):
            owned[rank, param.dtype].append(param)
        self._buffers = [(rank, _joined(members)) for (rank, _), members in owned.items()]
        mine = {id(p) for (rank, _), members in owned.items() for p in members if self._is(rank)}
        for group in optimizer.param_groups:
            group["params"] = [param for param in group["params"] if id(param) in mine]

    def after_update(self) -> None:
        """Broadcast each owner's parameters to all ranks."""
        works = [dist.broadcast(buffer, src, async_op=True) for src, buffer in self._buffers]
        for work in works:
            if work is not None:
                work.wait()

    @staticmethod
    def _is(rank: int) -> bool:
        return rank == dist.get_rank()


def owners(sizes: list[int], ranks: int) -> list[int]:
    """Assign an owner rank to each parameter: the largest parameter first, to the rank with least.

    Args:
        sizes: Number of elements of each parameter.
        ranks: Number of ranks.
    """
    loads = [0] * ranks
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        found[index] = loads.index(min(loads))
        loads[found[index]] += sizes[index]
    return found


@torch.no_grad()
def _joined(params: list[nn.Parameter]) -> Tensor:
    """Create one buffer with the values of all `params`, and make the parameters views of it."""
    buffer = torch.empty(
        sum(param.numel() for param in params), dtype=params[0].dtype, device=params[0].device
    )
    begin = 0
    for param in params:
        # Keep the strides: they may be those of channels_last.
        dense = torch.empty_like(param)
        place = buffer[begin : begin + param.numel()].as_strided(
            dense.shape, dense.stride(), storage_offset=begin
        )
        place.copy_(param)
        param.data = place
        begin += param.numel()
    return buffer
