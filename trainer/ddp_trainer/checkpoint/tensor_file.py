"""Give tensors the form of a safetensors file, one after another, without a copy of all of them.

The library's own writer needs contiguous tensors and copies them all first. This one copies one
tensor at a time, and only if its layout is not row by row. The format: the length of the header
(8 bytes, little-endian), the header (JSON), and the tensors
(https://github.com/huggingface/safetensors).
"""

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from ddp_trainer.checkpoint.store.base import Part
from ddp_trainer.errors import InputError
from ddp_trainer.names import NamedTensors

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""Names of the data types in a header."""
_ALIGNMENT = 8
"""Multiple of bytes at which the tensors begin."""


def tensor_parts(tensors: NamedTensors) -> Iterator[Part]:
    """Yield the content of a file with the tensors: its header, then each tensor with numbers.

    Args:
        tensors: Tensors by name, on any device and in any layout.

    Raises:
        InputError: If the format does not know a tensor's data type.
    """
    # The largest numbers first, so that each tensor begins at a multiple of its numbers' size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    yield _header(ordered)
    for _, tensor in ordered:
        if tensor.numel():
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            yield plain.reshape(-1).view(torch.uint8).numpy().data


def _header(ordered: list[tuple[str, Tensor]]) -> bytes:
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, tensor in ordered:
        dtype = _TYPES.get(tensor.dtype)
        if dtype is None:
            raise InputError(
                f'checkpoint: tensor "{name}" has the type {tensor.dtype}, which checkpoints do not'
                " support"
            )
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
