"""Tests of the tensor writer: every type and layout comes back with the same bits."""

import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ddp_trainer.checkpoint.format import MODEL
from ddp_trainer.checkpoint.header import TYPES
from ddp_trainer.checkpoint.parts import stored_tensors
from ddp_trainer.checkpoint.store.base import Entry
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.checkpoint.stream import read_stored
from ddp_trainer.checkpoint.tensor_file import _TYPES, tensor_parts
from ddp_trainer.errors import InputError


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> Entry:
    return PendingFolder(path.parent).put(path.name, tensor_parts(tensors))


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def of_all_types() -> dict[str, Tensor]:
    shapes = {"matrix": (3, 5), "scalar": (), "empty": (0, 4), "vector": (7,)}
    values = {name: torch.randint(0, 2, shape) for name, shape in shapes.items()}
    return {f"{n}.{t}": value.to(t) for n, value in values.items() for t in _TYPES}


def test_all_types_come_back_with_the_same_bits(tmp_path: Path) -> None:
    given = of_all_types()
    entry = write_tensors(tmp_path / "file", given)
    found = load_file(tmp_path / "file")
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name
    content = (tmp_path / "file").read_bytes()
    assert entry == {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_reader_knows_the_types_of_the_writer() -> None:
    assert {str(t).removeprefix("torch."): name for t, name in _TYPES.items()} == {
        t: name for name, t in TYPES.items()
    }


def test_own_reader_returns_the_same_bits_for_all_types(tmp_path: Path) -> None:
    given = of_all_types()
    write_tensors(tmp_path / MODEL, given)
    found = {
        stored.name: read_stored(stored) for stored in stored_tensors(tmp_path, MODEL, [MODEL])
    }
    for name, tensor in given.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


def test_all_layouts_come_back_with_the_same_bits(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 4, 5)
    given = {
        "channels last": image.to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, 6).t(),
        "strided": torch.randn(10)[::3],
        "expanded": torch.randn(1, 4).expand(3, 4),
        "not finite": torch.tensor([float("nan"), -0.0, float("inf")]),
        "conjugated": torch.randn(4, dtype=torch.complex64).conj(),
        "gradient": torch.randn(3, requires_grad=True),
    }
    write_tensors(tmp_path / "file", given)
    found = load_file(tmp_path / "file")
    for name, tensor in given.items():
        assert bits(found[name]) == bits(tensor.detach().resolve_conj().clone()), name


def test_no_tensors_make_a_file_that_can_be_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {})
    assert load_file(tmp_path / "file") == {}


def test_unknown_type_is_refused_with_the_name_of_the_tensor(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'"wide" has the type torch\.complex128'):
        write_tensors(tmp_path / "file", {"wide": torch.zeros(2, dtype=torch.complex128)})
