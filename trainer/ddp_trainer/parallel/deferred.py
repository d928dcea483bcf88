"""Create the weights of a model that `build` has made without memory, one part after another.

With fsdp2 a rank holds only its part of the weights. A task may build its model within
`env.deferred_weights()`, on torch's meta device. Then no rank ever holds the whole model: the
strategy creates the weights of one block, splits them, and goes on with the next block.
"""

import contextlib
import ctypes
from itertools import chain

import torch
from torch import Tensor, nn

from ddp_trainer.errors import InputError

_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 1 << 18
"""Size in bytes from which a tensor gets memory of its own."""


def is_deferred(model: nn.Module) -> bool:
    """Return whether a model has weights without memory."""
    return any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers()))


@torch.no_grad()
def create_weights(part: nn.Module, device: torch.device) -> None:
    """Create the missing weights of a part, with the values of `reset_parameters`.

    Tied weights stay tied, because no block shares weights with the rest of the model.

    Args:
        part: A block, or the model.
        device: Device of the weights.

    Raises:
        InputError: If a module with missing weights has no `reset_parameters`.
    """
    created: dict[Tensor, Tensor] = {}
    """Tensors with memory, by those without. Tensors are equal as keys if they are the same."""
    for name, module in part.named_modules():
        own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        missing = {key: tensor for key, tensor in own if tensor.is_meta}
        tied = [created[tensor] for tensor in missing.values() if tensor in created]
        is_new = len(tied) < len(missing)
        for key, tensor in missing.items():
            if tensor not in created:
                created[tensor] = _with_memory(tensor, device)
            setattr(module, key, created[tensor])
        if is_new:
            values = [tensor.clone() for tensor in tied]
            _reset(module, name)
            for tensor, value in zip(tied, values, strict=True):
                tensor.copy_(value)


def free_at_once() -> None:
    """Make the C library return the memory of each freed tensor to the system. Only with glibc.

    It keeps freed memory for later by default, and may keep several times what is in use: the
    blocks that fsdp2 gathers come and go in each pass.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    created = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(created, requires_grad=tensor.requires_grad)
    return created


def _reset(module: nn.Module, name: str) -> None:
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        raise InputError(
            f'task: the module "{name}" ({type(module).__name__}) was built within'
            " env.deferred_weights(), but has no method reset_parameters, which sets the first"
            " values of its weights and buffers"
        )
    reset()
