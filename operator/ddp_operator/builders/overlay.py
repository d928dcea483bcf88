"""Merge the podTemplate overlay of a job into a generated pod."""

from collections.abc import Mapping
from typing import Any


def apply_overlay(base: Any, overlay: Any) -> Any:
    """Return `base` merged with `overlay`.

    Objects merge by key and lists of named objects by name. Any other value replaces the old one.
    """
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        merged = {k: apply_overlay(base[k], v) if k in base else v for k, v in overlay.items()}
        return {**base, **merged}
    if _is_named_list(base) and _is_named_list(overlay):
        return _merge_named(base, overlay)
    return overlay


def _identity(item: Mapping[str, Any]) -> Any:
    """Return the key of a list item: for a mount its path, as one volume may be mounted twice."""
    return item.get("mountPath", item.get("name"))


def _is_named_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            # A name that is not a string is passed on, because the API server reports it.
            isinstance(item, Mapping) and "name" in item and isinstance(_identity(item), str)
            for item in value
        )
    )


def _merge_named(base: list[dict[str, Any]], overlay: list[dict[str, Any]]) -> list[Any]:
    merged = {_identity(item): item for item in base}
    for item in overlay:
        merged[_identity(item)] = apply_overlay(merged.get(_identity(item), {}), item)
    return list(merged.values())
