"""Merge the podTemplate overlay of a job into a generated pod."""

from collections.abc import Mapping
from typing import Any


def apply_overlay(base: Any, overlay: Any) -> Any:
    """Return `base` merged with `overlay`.

    Objects merge by key and lists of named objects by name. An empty list in the overlay leaves a
    list of named objects unchanged. Any other value replaces the old one.
    """
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        merged = {k: apply_overlay(base[k], v) if k in base else v for k, v in overlay.items()}
        return {**base, **merged}
    if _is_named_list(base) and (overlay is None or overlay == [] or _is_named_list(overlay)):
        return _merge_named(base, overlay or [])
    return overlay


def are_objects(value: Any) -> bool:
    """Return whether a value is a list of objects. The API server refuses any other value."""
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _identity(item: Mapping[str, Any]) -> Any:
    """Return the key that identifies a list item: its name, or the path of a mount."""
    path = item.get("mountPath")
    return (path.rstrip("/") or path) if isinstance(path, str) else item.get("name")


def _is_named_list(value: Any) -> bool:
    return (
        are_objects(value)
        and bool(value)
        # A name that is not a string is passed on, because the API server reports it.
        and all("name" in item and isinstance(_identity(item), str) for item in value)
    )


def _merge_named(base: list[dict[str, Any]], overlay: list[dict[str, Any]]) -> list[Any]:
    merged = {_identity(item): item for item in base}
    for item in overlay:
        merged[_identity(item)] = apply_overlay(merged.get(_identity(item), {}), item)
    return list(merged.values())
