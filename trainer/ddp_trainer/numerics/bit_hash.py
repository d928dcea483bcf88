"""Hash the bits of tensors, so that ranks can compare them by a single number.

Each tensor is read as 64-bit words in the order of its indices, so its layout in memory does not
matter. The upper half of a word is mixed into the whole word, because a product modulo 2^64 spreads
changes only towards higher bits. The result is multiplied by an odd number that depends on the
position, and the products are added modulo 2^64. So any flipped bit changes the hash. Other
changes, for example an exchange of two words, change it except in about one of 2^60 cases. No
number is read as a floating-point number, so NaN and -0 count by their bits.

Reading words of 64 bits is 20 to 100 times as fast on a CPU as reading 32-bit numbers, which torch
would convert one by one.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

_WORD = 8
"""Bytes of a word."""
_BLOCK = {"cpu": 1 << 16, "cuda": 1 << 21}
"""Words that are multiplied at once. On a CPU the products should stay in its cache."""
_STEP = -0x61C8864680B583EB
"""Odd factor between the multipliers of two positions: 2^64 divided by the golden ratio."""
_MIX = 0x2545F4914F6CDD1D
"""Odd factor of the upper half of a word, and between the hashes of two blocks."""


@torch.no_grad()
def bit_hash(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the hash of all bits of the tensors, as one int64 number on the device.

    Args:
        tensors: Strided tensors on the device, of any type and layout.
        device: The run's device.
    """
    size = _BLOCK.get(device.type, _BLOCK["cpu"])
    # Integers wrap around, so sums are exact in any order.
    multipliers = (torch.arange(size, dtype=torch.int64, device=device) * 2 + 1) * _STEP
    total = torch.zeros((), dtype=torch.int64, device=device)
    for block in _blocks(tensors, size):
        mixed = torch.add(block, block >> 32, alpha=_MIX).mul_(multipliers[: len(block)])
        total = total * _MIX + mixed.sum()
    return total


@torch.no_grad()
def with_one_nan(tensor: Tensor) -> Tensor:
    """Return a copy in which each NaN has the same bits.

    Two ranks that add the same two NaN in another order may keep the bits of either.
    """
    if tensor.is_complex():
        return torch.view_as_complex(with_one_nan(torch.view_as_real(tensor.resolve_conj())))
    if not tensor.is_floating_point():
        return tensor
    return tensor.masked_fill(tensor.isnan(), float("nan"))


def _blocks(tensors: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Yield the words of all tensors in blocks of at most `size` words.

    Words of small tensors are joined, because each block costs several calls of kernels.
    """
    joined: list[Tensor] = []
    held = 0
    for tensor in tensors:
        for words in _words(tensor):
            for part in words.split(size):
                if joined and held + len(part) > size:
                    yield torch.cat(joined)
                    joined, held = [], 0
                if len(part) == size:
                    yield part
                    continue
                joined.append(part)
                held += len(part)
    if joined:
        yield torch.cat(joined)


def _words(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the bytes of a tensor in the order of its indices, as words. Pad the last with 0."""
    if not tensor.numel():
        return
    if tensor.is_complex():
        tensor = tensor.resolve_conj().resolve_neg()
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if data.storage_offset() % _WORD:
        data = data.clone()  # A word must begin at a multiple of its size.
    rest = data.numel() % _WORD
    whole = data.numel() - rest
    if whole:
        yield data[:whole].view(torch.int64)
    if rest:
        yield functional.pad(data[whole:], (0, _WORD - rest)).view(torch.int64)
