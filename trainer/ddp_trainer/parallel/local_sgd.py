"""Post-local SGD: ranks train separately and average their weights every few updates.

See Lin et al. 2020 (arXiv:1808.07217). The optimizer's moments are averaged together with the
weights. After an average all ranks have the same state, which can be saved and resumed at any world
size.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_trainer.config import LocalSgdConfig
from ddp_trainer.parallel.layout import is_moment
from ddp_trainer.ranks.collectives import is_joined


class LocalSgd:
    """Schedule of local updates and averages, and the averaging itself."""

    def __init__(
        self,
        params: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        config: LocalSgdConfig,
        period: int,
    ) -> None:
        self._params = params
        self._optimizer = optimizer
        self._start = config.start_step
        self._period = period
        self._apart = False

    @property
    def apart(self) -> bool:
        """Whether the ranks have trained separately since their last average."""
        return self._apart

    def is_local(self, step: int) -> bool:
        """Return whether the update with this index stays local to each rank."""
        return step >= self._start

    def after_update(self, step: int) -> None:
        """Average the ranks if the update with this index ends a period."""
        self._apart = self.is_local(step)
        if self._apart and (step + 1 - self._start) % self._period == 0:
            self.average()

    def average(self) -> None:
        """Set weights and moments on all ranks to their mean. Every rank must call it."""
        if not self._apart:
            return
        weights: list[Tensor] = [param.detach() for param in self._params]
        for tensors in (weights, *self._moments()):
            average_over_ranks(tensors)
        self._apart = False

    def _moments(self) -> list[list[Tensor]]:
        """Return the optimizer state with the shape of its parameter, one list per kind."""
        found: dict[str, list[Tensor]] = {}
        for param in self._params:
            state: dict[str, Any] = self._optimizer.state.get(param, {})
            for name, value in state.items():
                if is_moment(value, name, param):
                    found.setdefault(name, []).append(value)
        return [found[name] for name in sorted(found)]


@torch.no_grad()
def average_over_ranks(tensors: list[Tensor]) -> None:
    """Replace tensors by their mean over ranks, in place. Every rank must call this.

    Args:
        tensors: One or more tensors of one data type on one device.
    """
    if not is_joined():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.div_(dist.get_world_size()).split([t.numel() for t in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
