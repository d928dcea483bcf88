"""Write rules in CEL about the fields and values of an object."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

JSON = dict[str, Any]

OWNER_UID = "owner-uid"
"""Uid of the owner of a sample object. A rule compares with that of the object's own owner."""
FREE = object()
"""Value that a job or the cluster chooses. The key may be missing."""
_SET_BY_API_SERVER: Mapping[str, JSON] = {
    "httpGet": {"scheme": "HTTP"},
    "livenessProbe": {"successThreshold": 1},
    "readinessProbe": {"successThreshold": 1},
    "ports": {"protocol": "TCP"},
}
"""Defaults that the API server adds to the constant parts of an object, by the name of the part."""


def quoted(words: Iterable[str]) -> str:
    """Return the CEL list of these strings."""
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def keys(place: str, allowed: Iterable[str]) -> str:
    """Return the rule that a map has no other keys than these."""
    return f"{place}.all(k, k in {quoted(sorted(allowed))})"


def literal(value: Any) -> str:
    """Return a value in CEL, with the owner's uid in the place of that of the sample job."""
    return json.dumps(value).replace('"', "'").replace(f"'{OWNER_UID}'", "variables.owner.uid")


def same(place: str, value: Any) -> str:
    """Return the rule that an object has this value, apart from defaults of the API server."""
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
