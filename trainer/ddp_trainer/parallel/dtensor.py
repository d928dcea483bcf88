"""Use split tensors (torch's `DTensor`), which the module recognises by their methods.

The import of the class takes a second, which a run without split tensors saves.
"""

import math
from collections.abc import Iterable
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


def copy_parts(target: Tensor, parts: Iterable[tuple[int, Tensor]]) -> None:
    """Copy a whole tensor that arrives in parts into a tensor, which may be split by rows.

    A rank needs memory for one part at a time, if its memory has the order of indices.

    Args:
        target: The tensor.
        parts: Place of the first number of each part, and the numbers in the order of indices.
            Together they are the whole tensor.
    """
    own = local(target)
    begin = first_number(target)
    if begin is None or not own.is_contiguous():
        whole_tensor = torch.cat([numbers for _, numbers in parts]).reshape(target.shape)
        target.copy_(laid_out_like(whole_tensor, target))
        return
    flat = own.detach().view(-1)
    for place, numbers in parts:
        first, last = max(begin, place), min(begin + len(flat), place + len(numbers))
        if first < last:
            flat[first - begin : last - begin].copy_(numbers[first - place : last - place])


def first_number(tensor: Tensor) -> int | None:
    """Return the place of this rank's first number in the whole tensor, in the order of indices.

    Return None if the tensor is split in another way than by rows.
    """
    if not is_split(tensor):
        return 0
    split: Any = tensor
    mesh = split.device_mesh
    if mesh.ndim != 1 or not split.placements[0].is_shard(0):
        return None
    rows: int = min(tensor.shape[0], -(-tensor.shape[0] // mesh.size()) * mesh.get_local_rank())
    return rows * math.prod(tensor.shape[1:])


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
