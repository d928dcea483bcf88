"""Refuse weights that a strategy cannot train."""

import torch
from torch import nn

from ddp_trainer.config import StrategyName
from ddp_trainer.errors import InputError


def check_weights(model: nn.Module, strategy: StrategyName) -> None:
    """Refuse what a strategy cannot update or a checkpoint cannot restore, before the first update.

    Args:
        model: The bare model.
        strategy: The strategy of the run on several ranks.

    Raises:
        InputError: If there is such a parameter, buffer or module. The message names the first one.
    """
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(
                f'task: the module "{name}" has an extra state (get_extra_state), which no'
                " checkpoint contains: keep it in a buffer, or in the state of the task"
                " (state_dict and load_state_dict)"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise InputError(
                f'task: the gradient of "{name}" would be sparse, which the trainer cannot reduce:'
                f" create this {type(module).__name__} with sparse=False"
            )
    _check_layouts(model)
    for name, param in model.named_parameters():
        if param.is_complex() and (param.requires_grad or strategy == "fsdp2"):
            raise InputError(
                f'task: the parameter "{name}" is complex, which the trainer cannot update: make it'
                " a real parameter whose last dimension has the two parts, and use"
                " torch.view_as_complex in forward"
            )
        if strategy == "fsdp2" and not param.dim():
            raise InputError(
                f'task: fsdp2 cannot split the parameter "{name}", because it is a number without'
                " dimensions: make it a vector of one element, or use ddp or zero1"
            )


def _check_layouts(model: nn.Module) -> None:
    """Refuse parameters and buffers that are not dense.

    Raises:
        InputError: If there is one. The message names it.
    """
    kinds = (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
    for kind, tensors in kinds:
        for name, tensor in tensors:
            if tensor.layout != torch.strided:
                raise InputError(
                    f'task: the {kind} "{name}" has the layout {tensor.layout}, but the trainer can'
                    " copy, compare and save only dense tensors: keep its values (and the indices"
                    " of a sparse tensor) in dense ones, and create this tensor in forward"
                )
