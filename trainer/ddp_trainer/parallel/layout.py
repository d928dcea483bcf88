"""Control the layout of weights in memory: the order of their elements, and gaps.

Fused optimizers process a weight, its gradient and its moments in the order of memory. So each
weight must be dense, and its gradient and moments must have the same strides
(`dtensor.laid_out_like`). Checkpoints use the order of indices, so a run may resume with another
layout.
"""

from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError
from ddp_trainer.names import plain_name
from ddp_trainer.parallel.dtensor import is_split

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory format of images and videos, and of convolution weights for them, by number of
dimensions."""


def order_in_memory(tensor: Tensor) -> list[int]:
    """Return the dimensions of a tensor, from the largest stride to the smallest."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda one: -strides[one])


def has_overlap(tensor: Tensor) -> bool:
    """Return whether two elements may share a memory location, for example after `expand`."""
    if not tensor.numel():
        return False
    span = 0
    """Distance of the last element from the first one, over the dimensions so far."""
    for one in reversed(order_in_memory(tensor)):
        if tensor.size(one) > 1:
            if tensor.stride(one) <= span:
                return True
            span += (tensor.size(one) - 1) * tensor.stride(one)
    return False


def has_gaps(tensor: Tensor) -> bool:
    """Return whether a tensor's memory has gaps between its elements, for example in a slice."""
    if not tensor.numel():
        return False
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in sizes) > tensor.numel()


def is_moment(value: object, name: str, param: Tensor) -> TypeGuard[Tensor]:
    """Return whether a value of an optimizer's state belongs to each element of a parameter.

    Args:
        value: A value of the optimizer's state.
        name: Name of the value. `step` is a counter, even if the parameter is a single number.
        param: The parameter to which the state belongs.
    """
    return isinstance(value, Tensor) and is_moment_of(value.shape, name, param)


def is_moment_of(shape: tuple[int, ...], name: str, param: Tensor) -> bool:
    """Return whether a state tensor of this shape belongs to each element of a parameter."""
    return shape == param.shape and name != "step"


@torch.no_grad()
def make_dense(model: nn.Module) -> list[str]:
    """Give each trained parameter dense memory of its own, in place. Shared weights stay shared.

    Buffers and frozen parameters with overlapping elements also get their own memory, because
    values could not be loaded into them otherwise.

    Args:
        model: The bare model, before the optimizer and the strategy see it.

    Returns:
        Names of the trained parameters that were copied.

    Raises:
        InputError: If elements of trained parameters share a memory location.
    """
    params = [(plain_name(name), each) for name, each in model.named_parameters() if _known(each)]
    for name, param in params:
        if param.requires_grad and has_overlap(param):
            raise InputError(
                f'task: elements of the parameter "{name}" share their memory, as after expand, so'
                " an update of one would change the others: call clone() in build, or make a"
                " smaller parameter and expand it in forward"
            )
    _check_memory(params)
    copied = [name for name, param in params if param.requires_grad and has_gaps(param)]
    for name, param in params:
        if name in copied or has_overlap(param):
            param.data = param.detach().contiguous()
    for buffer in filter(_known, model.buffers()):
        if has_overlap(buffer):
            buffer.data = buffer.detach().contiguous()
    return copied


@torch.no_grad()
def make_contiguous(model: nn.Module) -> None:
    """Make parameters and buffers contiguous in place. Shared tensors stay shared."""
    for tensor in (*model.parameters(), *model.buffers()):
        if _known(tensor) and not tensor.is_contiguous():
            tensor.data = tensor.detach().contiguous()


@torch.no_grad()
def make_channels_last(model: nn.Module) -> None:
    """Give the model's 4- and 5-dimensional tensors the channels-last memory format, in place."""
    for tensor in (*model.parameters(), *model.buffers()):
        if _known(tensor) and tensor.dim() in CHANNELS_LAST:
            tensor.data = tensor.detach().contiguous(memory_format=CHANNELS_LAST[tensor.dim()])


def copied_sentence(copied: list[str]) -> str | None:
    """Return a message about the parameters that `make_dense` copied, or None."""
    if not copied:
        return None
    return (
        f"{len(copied)} parameters are slices of other tensors with gaps in memory, first"
        f' "{copied[0]}": the trainer trains a copy of each, so the other tensors do not change'
        " with them"
    )


def _known(tensor: Tensor) -> bool:
    """Return whether a tensor has values and strides: it is not lazy, sparse, meta or split."""
    strided = tensor.layout == torch.strided and not is_split(tensor)
    return strided and not nn.parameter.is_lazy(tensor) and not tensor.is_meta


def _check_memory(params: list[tuple[str, nn.Parameter]]) -> None:
    """Refuse a trained parameter in whose memory another one lies: on a GPU they would be two."""
    places = sorted(
        (str(param.device), param.data_ptr(), number, name, param)
        for number, (name, param) in enumerate(params)
        if param.numel() and param.data_ptr()
    )
    for one, other in pairwise(places):
        (device, begin, _, name, first), (other_device, start, _, other_name, second) = one, other
        # Slices with gaps may lie between each other. They get memory of their own.
        dense = not has_gaps(first) and not has_overlap(first)
        within = dense and start < begin + first.nbytes
        trained = first.requires_grad or second.requires_grad
        if trained and device == other_device and (start == begin or within):
            raise InputError(
                f'task: the parameters "{name}" and "{other_name}" share their memory, which ends'
                " when the model moves to a GPU: assign the parameter itself (head.weight ="
                " embedding.weight) to share it"
            )
