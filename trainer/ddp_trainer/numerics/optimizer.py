"""The bundled optimizers: AdamW and SGD."""

import inspect
from collections.abc import Iterable

import torch
from torch import nn

from ddp_trainer.config import OptimizerConfig
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.dtensor import is_split

MATRIX_DIMENSIONS = 2
"""Minimum number of dimensions of a parameter with weight decay. Biases and norm scales have one
dimension."""


def build_optimizer(
    params: Iterable[nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """Create AdamW or SGD with two parameter groups: with and without weight decay.

    The fused kernels make one pass over all parameters. They read the overflow flag of the gradient
    scaler on the device, so the host need not wait for it.

    Args:
        params: Trained parameters.
        config: Settings of the optimizer.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for param in params:
        (decayed if param.dim() >= MATRIX_DIMENSIONS else plain).append(param)
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((decayed, config.weight_decay), (plain, 0.0))
        if members
    ]
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    # torch has no fused SGD for split parameters.
    fused = not any(is_split(param) for param in (*decayed, *plain))
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused
    )


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose step computes the loss again, such as LBFGS.

    Raises:
        InputError: If its `step` cannot be called without an argument.
    """
    needed = inspect.signature(optimizer.step).parameters.values()
    if any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in needed
    ):
        raise InputError(
            f"task: the step of {type(optimizer).__name__} needs a closure that computes the loss"
            " again, which the trainer does not have: use an optimizer that updates once per"
            " gradient"
        )


def init_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of fused SGD to zeros before its first update.

    Otherwise, if the first update is skipped because of non-finite gradients, the second update
    would use uninitialised memory as its momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and group["fused"] and not group["dampening"]:
            for param in group["params"]:
                buffer = torch.zeros_like(param, memory_format=torch.preserve_format)
                optimizer.state[param]["momentum_buffer"] = buffer
