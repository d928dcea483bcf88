"""Prepare a model before the strategy wraps it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.batch_norm import norms_in
from ddp_trainer.parallel.blocks import repeated_blocks
from ddp_trainer.parallel.layout import CHANNELS_LAST, make_channels_last


def prepare(model: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """Apply the configured BatchNorm, formats and activation checkpointing to a model.

    Names of parameters and buffers do not change.

    Args:
        model: The model of the task.
        config: Config of the run.
        device: The device of this rank.

    Raises:
        InputError: If the device or the model does not support a setting.
    """
    if config.sync_batch_norm:
        if device.type != "cuda":
            raise InputError(
                "config: sync_batch_norm needs CUDA; without it each rank normalises by its own"
                " batch, and statistics are averaged over ranks before they are used"
            )
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if config.precision == "fp64":
        model = model.double()
        model.register_forward_pre_hook(_inputs_double, with_kwargs=True)
    if config.channels_last:
        make_channels_last(model)
        model.register_forward_pre_hook(_inputs_channels_last)
    if config.activation_checkpointing:
        _checkpoint_activations(model)
    return model


def _checkpoint_activations(model: nn.Module) -> None:
    """Make repeated blocks store only their inputs and recompute in the backward pass.

    Chen et al. 2016 (arXiv:1604.06174).

    Raises:
        InputError: If the model has no repeated blocks, or has BatchNorm in them.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise InputError(
            "config: activation_checkpointing needs a model with repeated blocks, that is, an"
            " nn.ModuleList or nn.Sequential of modules of one class"
        )
    for block in blocks:
        if norms_in(block):
            raise InputError(
                "config: activation_checkpointing cannot be used with BatchNorm in the repeated"
                " blocks, because each batch would enter its running statistics twice"
            )
        block.forward = partial(_checkpointed, block.forward)


def _checkpointed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, **named)


def _inputs_double(
    _model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs converted to fp64, including tensors in dictionaries and lists."""
    return tree_map_only(Tensor, _double, inputs), tree_map_only(Tensor, _double, named)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _inputs_channels_last(_model: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value.contiguous(memory_format=CHANNELS_LAST[value.dim()])
        if isinstance(value, Tensor) and value.dim() in CHANNELS_LAST
        else value
        for value in inputs
    )
