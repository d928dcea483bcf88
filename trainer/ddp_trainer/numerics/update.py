"""Updates by torch's fused kernels, without collecting at each what does not change.

`torch.optim` looks up every parameter and its state anew at each update, and sorts them by device
and type. For a small model that takes as long as the kernels do, on the host and so also in front
of a GPU. Here the lists are kept from one update to the next; kernels, order and state are torch's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.parallel.dtensor import is_split

_ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class _Group:
    """One of the optimizer's groups."""

    settings: dict[str, Any]
    """The optimizer's own, which are read at each update."""
    params: list[Tensor]
    state: list[list[Tensor]]
    """Per kind of state, in the order of the parameters."""

    def gradients(self) -> list[Tensor]:
        """Those that there are now."""
        return [grad for param in self.params if (grad := param.grad) is not None]


class FusedUpdate:
    """Makes a bundled optimizer's updates, to the bit as its own `step` does.

    Its first update is made by torch, which makes the state, and so is that after a state was
    loaded. torch also makes those that are out of the ordinary: parameters in parts, or of several
    devices or types, or without a gradient.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._update = _sgd if isinstance(optimizer, torch.optim.SGD) else _adamw
        self._seen: Mapping[Tensor, Any] | None = None
        self._groups: list[_Group] = []

    def make(self, broken: Tensor) -> None:
        """Makes one update.

        Args:
            broken: fp32 scalar on the device; where it is 1, weights and state stay as they are.
        """
        # Loading puts new tensors into a new dictionary; nobody else replaces any.
        known = self._optimizer.state is self._seen
        work = [(group, group.gradients()) for group in self._groups] if known else []
        if work and all(len(grads) == len(group.params) for group, grads in work):
            with torch.no_grad():
                for group, grads in work:
                    self._update(group, grads, broken)
            return
        make_by_torch(self._optimizer, broken)
        if not known:
            self._seen, self._groups = self._optimizer.state, _look_up(self._optimizer)


def make_by_torch(optimizer: torch.optim.Optimizer, broken: Tensor) -> None:
    """Makes one update by an optimizer's own `step`, which reads the flag on the device.

    Args:
        optimizer: Fused; it takes the flag as `GradScaler` hands it over.
        broken: fp32 scalar on the device; where it is 1, weights and state stay as they are.
    """
    vars(optimizer).update(grad_scale=None, found_inf=broken)
    optimizer.step()


def _look_up(optimizer: torch.optim.Optimizer) -> list[_Group]:
    """The groups with their state; none if the kernels cannot take each of them as it is."""
    found: list[_Group] = []
    for settings in optimizer.param_groups:
        params: list[Tensor] = settings["params"]
        plain = not any(is_split(param) or param.is_complex() for param in params)
        alike = len({(param.device, param.dtype) for param in params}) <= 1
        if not (settings["fused"] and plain and alike and isinstance(settings["lr"], float)):
            return []
        names = _names(optimizer, settings)
        state = [[optimizer.state[p].get(name) for p in params] for name in names]
        if any(value is None for values in state for value in values):
            return []
        if params:
            found.append(_Group(settings, params, state))
    return found


def _names(optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(optimizer, torch.optim.SGD):
        return ("momentum_buffer",) if settings["momentum"] else ()
    return _ADAM_STATE


def _sgd(group: _Group, grads: list[Tensor], broken: Tensor) -> None:
    settings = group.settings
    torch._fused_sgd_(
        group.params,
        grads,
        group.state[0] if group.state else [],
        weight_decay=settings["weight_decay"],
        momentum=settings["momentum"],
        lr=settings["lr"],
        dampening=settings["dampening"],
        nesterov=settings["nesterov"],
        maximize=settings["maximize"],
        is_first_step=False,
        found_inf=broken,
    )


def _adamw(group: _Group, grads: list[Tensor], broken: Tensor) -> None:
    settings = group.settings
    means, squares, steps = group.state
    beta1, beta2 = settings["betas"]
    torch._foreach_add_(steps, 1)
    torch._fused_adamw_(
        group.params,
        grads,
        means,
        squares,
        [],
        steps,
        lr=settings["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=settings["weight_decay"],
        eps=settings["eps"],
        amsgrad=False,
        maximize=settings["maximize"],
        found_inf=broken,
    )
    # The kernel leaves weights and moments as they were; the count of updates goes back as well.
    torch._foreach_sub_(steps, [broken] * len(steps))
