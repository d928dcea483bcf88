"""Preparation of a model before the strategy wraps it."""

import torch
from torch import Tensor, nn

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import InputError

IMAGE_DIMENSIONS = 4
"""Dimensions of a batch of images."""


def prepare(model: nn.Module, config: RunConfig, device: torch.device) -> nn.Module:
    """Return the model with the configured BatchNorm, number format and memory format.

    Names of parameters and buffers do not change.

    Args:
        model: The model of the task.
        config: Config of the run.
        device: The device of this rank.

    Raises:
        InputError: If the device does not support a setting.
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
        model.register_forward_pre_hook(_inputs_double)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.register_forward_pre_hook(_inputs_channels_last)
    return model


def _inputs_double(_model: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    )


def _inputs_channels_last(_model: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value.contiguous(memory_format=torch.channels_last)
        if isinstance(value, Tensor) and value.dim() == IMAGE_DIMENSIONS
        else value
        for value in inputs
    )
