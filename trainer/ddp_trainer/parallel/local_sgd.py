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
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.layout import is_moment
from ddp_trainer.ranks.collectives import by_rank, is_joined, json_by_rank
from ddp_trainer.seeds import derive_seed

_Moments = dict[str, dict[int, Tensor]]
"""Moments by their name and the position of their parameter."""


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
        self._complete = False
        """Whether all ranks are known to have the moments of each parameter."""

    @property
    def apart(self) -> bool:
        """Whether the ranks have trained separately since their last average."""
        return self._apart

    def is_local(self, step: int) -> bool:
        """Return whether the update with this index stays local to each rank."""
        return step >= self._start

    def after_update(self, step: int) -> None:
        """Average the ranks if the update with this index ends a period.

        Raises:
            InputError: As `average`.
        """
        self._apart = self.is_local(step)
        if self._apart and (step + 1 - self._start) % self._period == 0:
            self.average()

    def average(self) -> None:
        """Set weights and moments on all ranks to their mean. Every rank must call it.

        Raises:
            InputError: On every rank, if the ranks have moments of different parameters.
        """
        if not self._apart:
            return
        moments = self._moments()
        self._compare(moments)
        weights: list[Tensor] = [param.detach() for param in self._params]
        for tensors in (weights, *(list(moments[name].values()) for name in sorted(moments))):
            average_over_ranks(tensors)
        self._apart = False

    def _moments(self) -> _Moments:
        """Return the optimizer state with the shape of its parameter."""
        found: _Moments = {}
        for position, param in enumerate(self._params):
            state: dict[str, Any] = self._optimizer.state.get(param, {})
            for name, value in state.items():
                if is_moment(value, name, param):
                    found.setdefault(name, {})[position] = value
        return found

    def _compare(self, moments: _Moments) -> None:
        """Compare the ranks' sets of moments, unless no set can change any more.

        An optimizer creates the moments of a parameter at its first gradient, and never removes
        them. A comparison waits for the device, so it ends when every set is complete.

        Raises:
            InputError: On every rank, if the sets differ.
        """
        if self._complete:
            return
        device = self._params[0].device
        positions = {name: list(moments[name]) for name in sorted(moments)}
        if len(set(by_rank(derive_seed(repr(positions)), device))) > 1:
            raise self._error(json_by_rank(positions, device))
        total = len(self._params)
        self._complete = bool(moments) and all(len(each) == total for each in moments.values())

    def _error(self, by_each: list[dict[str, list[int]]]) -> InputError:
        """Return the error about the first moment that not all ranks have."""
        sets: list[set[tuple[int, str]]] = [
            {(at, name) for name in rank for at in rank[name]} for rank in by_each
        ]
        differing = sets[0].union(*sets[1:]) - sets[0].intersection(*sets[1:])
        at, name = min(differing)
        having = [rank for rank, each in enumerate(sets) if (at, name) in each]
        lacking = [rank for rank, each in enumerate(sets) if (at, name) not in each]
        shape = list(self._params[at].shape)
        return InputError(
            f"config: parallel.local_sgd: rank {having[0]} has the optimizer state {name} of weight"
            f" {at + 1} of {len(self._params)} (shape {shape}), but rank {lacking[0]} does not,"
            " because it has not updated this weight so far (its batches did not use it, or their"
            " loss was not finite): set parallel.local_sgd.start_step, so that the ranks train"
            " together until each weight has been updated"
        )


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
