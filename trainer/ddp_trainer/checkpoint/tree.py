"""Convert nested state, for example a task's, to tensors and a JSON document, and back.

The document has the structure of the state. `{"$tensor": name}` refers to a tensor. Files store a
tensor in the order of its indices. If its order in memory differs, `"$order"` lists the dimensions
by stride, because a task's optimizer may depend on the order in memory. JSON has no form for
tuples, nor for dictionaries whose keys are not strings, as in optimizer state. They are stored as
`{"$tuple": [...]}` and `{"$items": [[key, value], ...]}`.
"""

from typing import Any

import torch
from torch import Tensor

from ddp_trainer.checkpoint.references import replaced
from ddp_trainer.checkpoint.snapshot import Tensors
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.layout import order_in_memory

_SCALARS = (bool, int, float, str, type(None))
_UNSUPPORTED = (torch.complex128,)


def encode(state: Any, owner: str) -> tuple[Tensors, Any]:
    """Return the tensors of nested state by name, not copied, and the JSON document.

    Args:
        state: Dictionaries, lists and tuples of tensors and JSON values, at any depth.
        owner: Owner of the state, for error messages.

    Raises:
        InputError: If a value is of another type. The message names the position of the value.
    """
    tensors: Tensors = {}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_meta or value.dtype in _UNSUPPORTED:
                raise _refused(path, owner, f"{value.layout} of {value.dtype}")
            while path in tensors:
                path += "'"
            tensors[path] = value
            order = order_in_memory(value)
            return {"$tensor": path} | ({} if order == sorted(order) else {"$order": order})
        if type(value) in _SCALARS:
            return value
        if isinstance(value, dict):
            for key in value:
                if type(key) not in _SCALARS:
                    raise _refused(f"{path}/{key}", owner, f"a key of type {type(key).__name__}")
            items = [(key, visit(item, f"{path}/{key}".strip("/"))) for key, item in value.items()]
            plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
            return dict(items) if plain else {"$items": [list(item) for item in items]}
        if type(value) in (list, tuple):
            many = [visit(item, f"{path}/{n}".strip("/")) for n, item in enumerate(value)]
            return many if isinstance(value, list) else {"$tuple": many}
        raise _refused(path, owner, type(value).__name__)

    return tensors, visit(state, "")


def decode(tensors: Tensors, document: Any) -> Any:
    """Return the state that `encode` converted. Dictionaries of any type become `dict`."""
    return replaced(tensors, document, _ordered)


def _ordered(tensor: Tensor, order: list[int] | None) -> Tensor:
    """Return a tensor whose dimensions have the given order in memory."""
    if order is None or sorted(order) != list(range(tensor.dim())):
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(one) for one in sorted(order)])


def _refused(path: str, owner: str, given: str) -> InputError:
    return InputError(
        f'checkpoint: "{path}" in the state of the {owner} must be a tensor or a JSON value, not'
        f" {given}"
    )
