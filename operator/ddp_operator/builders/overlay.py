"""Lays a part of a pod over a generated one."""

from collections.abc import Mapping
from typing import Any


def lay_over(base: Any, overlay: Any) -> Any:
    """Merge JSON documents: objects by key, named lists by name, other values replace."""
    if isinstance(base, Mapping) and isinstance(overlay, Mapping):
        merged = {k: lay_over(base[k], v) if k in base else v for k, v in overlay.items()}
        return {**base, **merged}
    if _named(base) and _named(overlay):
        return _merge_named(base, overlay)
    return overlay


def _identity(item: Mapping[str, Any]) -> Any:
    """What tells items of a list apart: a volume may be mounted at several paths."""
    return item.get("mountPath", item.get("name"))


def _named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            # What is no name, the API server refuses; here it is only passed on.
            isinstance(item, Mapping) and "name" in item and isinstance(_identity(item), str)
            for item in value
        )
    )


def _merge_named(base: list[dict[str, Any]], overlay: list[dict[str, Any]]) -> list[Any]:
    merged = {_identity(item): item for item in base}
    for item in overlay:
        merged[_identity(item)] = lay_over(merged.get(_identity(item), {}), item)
    return list(merged.values())
