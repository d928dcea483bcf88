"""Replace the references to tensors in the JSON document of nested state (`checkpoint.tree`).

The module does not import torch, so that a checkpoint can be checked without it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def replaced(tensors: Mapping[str, T], document: Any, ordered: Callable[[T, Any], Any]) -> Any:
    """Return the state that `tree.encode` converted. Dictionaries of any type become `dict`.

    Args:
        tensors: Tensors by name, or what stands for them.
        document: JSON document of the state.
        ordered: Function that returns the value for a tensor and its `$order`, which may be None.
    """
    if isinstance(document, list):
        return [replaced(tensors, item, ordered) for item in document]
    if not isinstance(document, dict):
        return document
    if "$tensor" in document:
        return ordered(tensors[document["$tensor"]], document.get("$order"))
    if "$tuple" in document:
        return tuple(replaced(tensors, item, ordered) for item in document["$tuple"])
    items = document["$items"] if "$items" in document else document.items()
    return {key: replaced(tensors, item, ordered) for key, item in items}
