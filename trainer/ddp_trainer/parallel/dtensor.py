"""Use split tensors (torch's `DTensor`), which the module recognises by their methods.

The import of the class takes a second, which a run without split tensors saves.
"""

from typing import Any

import torch
from torch import Tensor


def is_split(tensor: Tensor) -> bool:
    """Return whether each rank holds only a part of the tensor."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, without a copy; the whole tensor if it is not split."""
    part: Any = tensor
    return part.to_local() if is_split(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. Every rank must call this function for a split tensor."""
    part: Any = tensor
    return part.full_tensor() if is_split(tensor) else tensor


def laid_out_like(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Return a whole tensor with the layout of `pattern`: same device and strides, split like it.

    Args:
        tensor: Tensor that is equal on all ranks, because the ranks do not communicate.
        pattern: A tensor of the same shape, with dense memory.
    """
    tensor = tensor.to(pattern.device)
    source = tensor
    if is_split(pattern):
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

        part: Any = pattern
        split = distribute_tensor(tensor, part.device_mesh, part.placements, src_data_rank=None)
        source = local(split)
    elif tensor.stride() == pattern.stride():
        return tensor
    # torch's part is a view that keeps the whole tensor in memory, so it is copied in any case.
    result = torch.empty_like(pattern, dtype=tensor.dtype)
    local(result).copy_(source)
    return result
