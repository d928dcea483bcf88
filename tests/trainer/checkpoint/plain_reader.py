"""A reader of checkpoints, written from docs/use/checkpoint-format.md alone.

It shares no code with the product and needs no torch, so it shows that the page is enough.
"""

import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Tensor = tuple[str, tuple[int, ...], bytes]
"""Type by its name in safetensors, shape, and the bytes in the order of indices."""

Parts = tuple[str, tuple[int, ...], dict[int, bytes]]
"""The same with the parts of the bytes, by the place of their first number."""

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
         "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8,
         "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1}  # fmt: skip
"""Bytes of a number, by type."""
ARRAYS = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "I16": "<i2", "U8": "u1"}
"""Types of numpy, by type."""


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the documents (`state`, `optimizer`, `task`) and the tensors by kind and name."""
    manifest = json.loads((folder / "MANIFEST.json").read_text("utf-8"))
    assert manifest["format"] in (1, 2)
    name = f"step-{manifest['step']:08d}.attempt-{manifest['attempt']}"
    assert folder.name == name
    for file, entry in manifest["files"].items():
        data = (folder / file).read_bytes()
        assert len(data) == entry["bytes"]
        assert f"{zlib.crc32(data):08x}" == entry["crc32"]
    found: dict[str, Any] = {
        Path(file).stem: json.loads((folder / file).read_text("utf-8"))
        for file in manifest["files"]
        if file.endswith(".json")
    }
    kinds: dict[str, dict[str, Parts]] = {}
    for file in manifest["files"]:
        if file.endswith(".safetensors"):
            kind = re.sub(r"(-\d{5,}-of-\d{5,})?\.safetensors", "", file)
            for tensor, (dtype, shape, begin, data) in read_file(folder / file).items():
                parts = kinds.setdefault(kind, {}).setdefault(tensor, (dtype, shape, {}))
                assert parts[:2] == (dtype, shape)
                assert begin not in parts[2]
                parts[2][begin] = data
    found["tensors"] = {
        kind: {tensor: joined(parts) for tensor, parts in tensors.items()}
        for kind, tensors in kinds.items()
    }
    return found


def joined(parts: Parts) -> Tensor:
    """Return a tensor from its parts, which must cover it without gaps."""
    dtype, shape, pieces = parts
    data = b""
    for begin, piece in sorted(pieces.items()):
        assert len(data) == begin * SIZES[dtype]
        data += piece
    assert len(data) == int(np.prod(shape, dtype=np.int64)) * SIZES[dtype]
    return dtype, shape, data


def read_file(path: Path) -> dict[str, tuple[str, tuple[int, ...], int, bytes]]:
    """Return type, whole shape, first number and bytes of each tensor in a file, by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    described = json.loads(metadata.get("parts", "{}"))
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        assert end - begin == count * SIZES[entry["dtype"]]
        part = described.get(name, {"shape": entry["shape"], "begin": 0})
        found[name] = entry["dtype"], tuple(part["shape"]), part["begin"], data[begin:end]
    return found


def as_array(tensor: Tensor) -> Any:
    """Return a tensor as an array of numpy."""
    dtype, shape, data = tensor
    return np.frombuffer(data, ARRAYS[dtype]).reshape(shape)
