"""The bundled update rules."""

from collections.abc import Iterable

import torch
from torch import nn

from ddp_trainer.config import OptimizerConfig
from ddp_trainer.parallel.dtensor import is_split

MATRIX_DIMENSIONS = 2
"""Weights with at least so many dimensions are decayed; biases and norm scales have one."""


def build_optimizer(
    params: Iterable[nn.Parameter], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """AdamW or SGD over two groups, decayed and not.

    The fused kernels make one pass over all parameters, and read the gradient scaler's overflow
    flag on the device instead of stopping the host for it.

    Args:
        params: Parameters with a gradient.
        config: Update rule and its numbers.
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
    # torch has no fused SGD for parameters in parts.
    fused = not any(is_split(param) for param in (*decayed, *plain))
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused
    )


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Gives fused SGD its momentum as zeros, which is what its first update makes of none.

    If that first update is skipped, because its gradients are not finite, torch leaves memory that
    nothing was written to as the momentum of the second.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["momentum"] and group["fused"] and not group["dampening"]:
            for param in group["params"]:
                buffer = torch.zeros_like(param, memory_format=torch.preserve_format)
                optimizer.state[param]["momentum_buffer"] = buffer
