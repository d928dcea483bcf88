"""Tests of the hash by which ranks compare their tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ddp_trainer.numerics import bit_hash as bit_hash_
from ddp_trainer.numerics.bit_hash import bit_hash, with_one_nan

CPU = torch.device("cpu")
DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.uint8,
    torch.bool,
]  # fmt: skip
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "transposed": lambda tensor: tensor.transpose(0, 3).contiguous().transpose(0, 3),
    "strided": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 1],
    "offset": lambda tensor: torch.cat([tensor[:1].reshape(-1)[:1], tensor.reshape(-1)])[1:].view(
        tensor.shape
    ),
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
}


def hashed(*tensors: Tensor) -> int:
    return int(bit_hash(tensors, CPU))


def filled(dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    size = torch.empty(shape, dtype=dtype).nbytes
    top = 2 if dtype == torch.bool else 256
    data = torch.randint(0, top, (size,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


def flipped(tensor: Tensor, byte: int, bit: int) -> Tensor:
    """Return a copy with the same layout in which one bit of a byte differs."""
    copy = tensor.clone(memory_format=torch.preserve_format)
    data = copy.untyped_storage()
    data[byte] = data[byte] ^ (1 << bit)
    return copy


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hash_depends_on_the_bits_and_not_on_the_layout(dtype: torch.dtype, layout: str) -> None:
    tensor = filled(dtype, 3, 5, 2, 3)
    other = LAYOUTS[layout](tensor)
    assert hashed(other) == hashed(tensor)
    assert hashed(tensor, other) == hashed(other, tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5)], ids=str)
def test_each_flipped_bit_changes_the_hash(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = filled(dtype, *shape)
    before = hashed(tensor)
    for byte in range(tensor.nbytes):
        bits = [0] if dtype == torch.bool else range(8)
        for bit in bits:
            assert hashed(flipped(tensor, byte, bit)) != before


def test_bit_flipped_in_a_channels_last_weight_changes_the_hash() -> None:
    tensor = LAYOUTS["channels_last"](filled(torch.float32, 3, 5, 2, 3))
    assert len({hashed(flipped(tensor, byte, 6)) for byte in range(tensor.nbytes)}) == tensor.nbytes


def test_exchanged_words_and_tensors_change_the_hash() -> None:
    tensor = filled(torch.float32, 64)
    swapped = tensor.clone()
    swapped[[3, 40]] = tensor[[40, 3]]
    assert hashed(swapped) != hashed(tensor)
    one, other = tensor[:32], tensor[32:]
    assert hashed(one, other) != hashed(other, one)
    # Opposite flips of the same bit of two words do not cancel out.
    both = flipped(flipped(torch.tensor([0.0, 1.0, 0.0, 1.0]), 3, 6), 11, 6)
    assert hashed(both) != hashed(torch.tensor([0.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize("size", [1, 2, 8, 1 << 16])
def test_each_flipped_bit_changes_the_hash_with_any_size_of_a_block(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bit_hash_, "_BLOCK", {"cpu": size})
    tensors = [filled(torch.float32, n) for n in (1, 0, 5, 33, 2)]
    seen = {hashed(*tensors)}
    for number, tensor in enumerate(tensors):
        for byte in range(tensor.nbytes):
            changed = [*tensors[:number], flipped(tensor, byte, 7), *tensors[number + 1 :]]
            seen.add(hashed(*changed))
    assert len(seen) == 1 + sum(tensor.nbytes for tensor in tensors)


def test_empty_tensors_and_no_tensors_have_a_hash() -> None:
    assert hashed() == hashed(torch.empty(0), torch.empty(3, 0, 2)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_nan_counts_by_its_bits_until_each_nan_gets_the_same(dtype: torch.dtype) -> None:
    tensor = torch.full((4,), float("nan"), dtype=dtype)
    assert hashed(tensor) == hashed(tensor.clone())
    other = flipped(tensor, 0, 0)
    assert hashed(other) != hashed(tensor)
    assert hashed(with_one_nan(other)) == hashed(with_one_nan(tensor))
    assert hashed(with_one_nan(torch.zeros(4, dtype=dtype))) == 0
    assert hashed(-torch.zeros(4, dtype=dtype)) != 0
