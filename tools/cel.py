"""Build CEL rules about the fields and values of an object."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

JSON = dict[str, Any]

OWNER_UID = "owner-uid"
"""Uid of the owner of a sample object. In a rule, the real owner's uid replaces it."""
FREE = object()
"""Placeholder for a value that a job or the cluster chooses. The key may be missing."""
_SET_BY_API_SERVER: Mapping[str, JSON] = {
    "httpGet": {"scheme": "HTTP"},
    "livenessProbe": {"successThreshold": 1},
    "readinessProbe": {"successThreshold": 1},
    "ports": {"protocol": "TCP"},
}
"""Defaults that the API server adds to the constant parts of an object, by name of the part."""


def quoted(words: Iterable[str]) -> str:
    """Return a CEL list of the given strings."""
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def keys(place: str, allowed: Iterable[str]) -> str:
    """Return a CEL rule that a map has no other keys than the given ones."""
    return f"{place}.all(k, k in {quoted(sorted(allowed))})"


def literal(value: Any) -> str:
    """Return a value as CEL, in which the real owner's uid replaces the sample's."""
    return json.dumps(value).replace('"', "'").replace(f"'{OWNER_UID}'", "variables.owner.uid")


def same(place: str, value: Any) -> str:
    """Return a CEL rule that an object equals a value, apart from the API server's defaults."""
    if value is FREE:
        return "true"
    if isinstance(value, Mapping):
        part = place.rpartition(".")[2].partition("[")[0]
        defaults = {k: v for k, v in _SET_BY_API_SERVER.get(part, {}).items() if k not in value}
        rules = [keys(place, [*value, *defaults])]
        for key, inner in value.items():
            if inner is not FREE:
                rules.append(f"has({place}.{key})")
                rules.append(same(f"{place}.{key}", inner))
        rules += [
            f"(!has({place}.{key}) || {place}.{key} == {literal(v)})" for key, v in defaults.items()
        ]
        return " && ".join(rules)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        parts = [same(f"{place}[{index}]", item) for index, item in enumerate(value)]
        return " && ".join([f"size({place}) == {len(value)}", *parts])
    return f"{place} == {literal(value)}"


def same_value(place: str, key: str, value: Any) -> str:
    """Return a CEL rule that a key of a map has a constant value."""
    return f"{place}.{key} == {literal(value)}"
