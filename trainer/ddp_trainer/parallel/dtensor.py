"""Tensors of which each rank holds a part: torch's `DTensor`, told by what it can do.

Importing its class takes a second that a run without such tensors need not spend.
"""

from typing import Any

from torch import Tensor


def is_split(tensor: Tensor) -> bool:
    """Whether each rank holds a part only."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; all of it if it is not split."""
    part: Any = tensor
    return part.to_local() if is_split(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor. If it is split, every rank must call it."""
    part: Any = tensor
    return part.full_tensor() if is_split(tensor) else tensor


def laid_out_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor as `pattern` is laid out: on its device, and in parts if that is in parts.

    Args:
        tensor: Equal on all ranks; nothing travels.
        pattern: Of the same shape.
    """
    tensor = tensor.to(pattern.device)
    if not is_split(pattern):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    part: Any = pattern
    return distribute_tensor(tensor, part.device_mesh, part.placements, src_data_rank=None)
