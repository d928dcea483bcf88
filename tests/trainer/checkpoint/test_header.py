"""Tests of the reader of safetensors headers."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ddp_trainer.checkpoint.header import LARGEST_HEADER, TYPES, HeaderError, read_header


def written(path: Path, header: Any, size: int = 8) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    return path


def entry(dtype: str = "F32", shape: Any = (2,), places: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(places)}


def test_header_has_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = {
        f"{name} of {shape}": torch.zeros(shape, dtype=getattr(torch, name))
        for name in TYPES.values()
        for shape in ((), (0, 3), (5,), (2, 3))
    }
    save_file(tensors, tmp_path / "all.safetensors", metadata={"a": "b"})
    header = read_header(tmp_path / "all.safetensors")
    assert header.metadata == {"a": "b"}
    found = {tensor.name: (tensor.shape, tensor.dtype) for tensor in header.tensors}
    assert found == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }
    nbytes = {tensor.name: tensor.end - tensor.begin for tensor in header.tensors}
    assert nbytes == {name: tensor.nbytes for name, tensor in tensors.items()}


BAD: dict[str, tuple[Any, str]] = {
    "gap": ({"a": entry(places=(4, 12))}, "its tensors do not fill the file"),
    "overlap": ({"a": entry(), "b": entry()}, "its tensors do not fill the file"),
    "short": ({"a": entry(shape=(1,), places=(0, 4))}, "its tensors do not fill the file"),
    "long": ({"a": entry(shape=(4,), places=(0, 16))}, "its tensors do not fill the file"),
    "huge": ({"a": entry(shape=(2**62, 4))}, '"a" has 8 bytes, which do not fit its shape'),
    "type": ({"a": entry("F7")}, '"a" has the unknown type F7'),
    "negative": ({"a": entry(shape=(-2,), places=(8, 0))}, 'its description of "a" is damaged'),
    "fraction": ({"a": entry(shape=(2.0,))}, 'its description of "a" is damaged'),
    "no places": ({"a": {"dtype": "F32", "shape": [2]}}, 'its description of "a" is damaged'),
    "text": ({"a": "b"}, 'its description of "a" is damaged'),
    "list": ([], "its header is not a JSON object"),
    "metadata": ({"__metadata__": {"a": 1}}, "its metadata are not texts"),
    "not JSON": (b"{", "its header is not JSON"),
    "deep": (b'{"a":' * 5000, "its header is not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_header_is_refused(tmp_path: Path, case: str) -> None:
    header, reason = BAD[case]
    path = written(tmp_path / "bad", header)
    with pytest.raises(HeaderError) as caught:
        read_header(path)
    assert str(caught.value) == reason
    with pytest.raises(SafetensorError):
        load_file(path)


@pytest.mark.parametrize("length", [9, LARGEST_HEADER + 1, 2**63])
def test_header_that_claims_more_bytes_than_the_file_has_is_not_read(
    tmp_path: Path, length: int
) -> None:
    (tmp_path / "bad").write_bytes(struct.pack("<Q", length) + bytes(8))
    with pytest.raises(HeaderError, match=f"its header would have {length} bytes, but the file"):
        read_header(tmp_path / "bad")


def test_file_without_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(HeaderError):
        read_header(tmp_path / "empty")
