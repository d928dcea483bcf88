"""Hypothesis strategies for specs, built from the CRD's schema: most valid, some corrupted."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ddp_operator.api.base import CONTROLLER_NAME
from tests.operator.schema_tools import part

JSON = dict[str, Any]
Place = tuple[Any, Any]
"""A container in a document, and the key or index of one of its values."""

_WORDS = st.sampled_from(["a", "data", "B", "x-1", "eth0", "a/b", "9", "ä", "-", "a b", "$(A)"])
_JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | _WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=2),
    max_leaves=4,
)
_SMALL: dict[str, SearchStrategy[Any]] = {
    "nodes": st.integers(1, 3),
    "managedBy": st.just(CONTROLLER_NAME),  # A job of another controller has no end.
    "hostNetwork": st.just(False),  # The chart of the control plane reserves no ports.
}
"""Strategies for fields whose full range is too large for a test, or mostly refused."""
_POD_PARTS: SearchStrategy[Any] = st.sampled_from(
    [
        {"containers": [{"name": "worker", "image": "example/other:1"}]},
        {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]},
        {"containers": [{"name": "sidecar", "image": "example/sidecar:1"}]},
        {"containers": []},
        {"containers": [{"name": "worker", "command": "not a list"}]},
        {"containers": [{"name": ["worker"]}]},
        {"containers": [{"name": "worker", "volumeMounts": [{"name": "v", "mountPath": {}}]}]},
        {"hostNetwork": True},
        {"serviceAccountName": "nobody"},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        {"terminationGracePeriodSeconds": 5},
        {"nodeSelector": {"a": "b"}},
        {"restartPolicy": "Always"},
        {"unknownField": 1},
    ]
)
_WRONG_VALUES: SearchStrategy[Any] = st.sampled_from(
    [
        None,
        -1,
        0,
        2**31,
        2**63,
        1.5,
        "",
        "x" * 5000,
        "\u0000",
        "日本",
        True,
        [],
        {},
        [None],
        {"": 1},
    ]
)


@st.composite
def specs(draw: DrawFn) -> JSON:
    """Draw a spec: two in three are valid by the schema, the others have one or two errors."""
    spec: JSON = draw(_from(part("spec")))
    if draw(st.integers(0, 9)):  # In one of ten specs task and command may both be set or unset.
        _choose_what_runs(spec, task=draw(st.booleans()))
    if checkpoint := spec.get("checkpoint"):
        made = draw(st.booleans())
        checkpoint.pop("claimName" if made else "claimTemplate", None)
        checkpoint.setdefault(*(("claimTemplate", {"size": 1}) if made else ("claimName", "a")))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        spec = _corrupted(draw, spec)
    return spec


def _choose_what_runs(spec: JSON, *, task: bool) -> None:
    """Set either a task or a command, and the fields that belong to it."""
    for name in ("command", "args") if task else ("task", "config"):
        spec.pop(name, None)
    if task:
        spec.setdefault("task", "flowers:build")
    else:
        spec.setdefault("command", ["true"])


def _from(schema: JSON, name: str = "") -> SearchStrategy[Any]:
    """Return a strategy for small values that a schema allows."""
    if name in _SMALL:
        return _SMALL[name]
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return _free(name)
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(0, 9) | st.sampled_from(["1", "500m", "2Gi", "1e3", ".5", "-1"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return _BY_TYPE[schema["type"]](schema)


def _free(name: str) -> SearchStrategy[Any]:
    objects = st.dictionaries(_WORDS, _JSON, max_size=3)
    if name == "spec":
        return _POD_PARTS | objects
    if name in {"persistentVolumeClaim", "configMap", "secret"}:
        key = {"persistentVolumeClaim": "claimName", "secret": "secretName"}.get(name, "name")
        return st.just({key: "theirs"}) | objects
    return st.just({}) | objects


def _object(schema: JSON) -> SearchStrategy[Any]:
    if "additionalProperties" in schema:
        return st.dictionaries(_WORDS, _from(schema["additionalProperties"]), max_size=2)
    fields = {name: _from(value, name) for name, value in schema.get("properties", {}).items()}
    needed = {name: fields.pop(name) for name in schema.get("required", [])}
    return st.fixed_dictionaries(needed, optional=fields)


def _array(schema: JSON) -> SearchStrategy[Any]:
    least = schema.get("minItems", 0)
    return st.lists(_from(schema["items"]), min_size=least, max_size=max(least, 2))


def _string(schema: JSON) -> SearchStrategy[Any]:
    most = min(schema.get("maxLength", 64), 64)
    words: SearchStrategy[str] = _WORDS
    if "pattern" in schema:
        words = st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
    return words.filter(lambda word: schema.get("minLength", 0) <= len(word) <= most)


def _integer(schema: JSON) -> SearchStrategy[Any]:
    least, most = schema.get("minimum", 0), schema.get("maximum", 9)
    return st.sampled_from([least, min(least + 1, most), most]) | st.integers(least, most)


_BY_TYPE: dict[str, Callable[[JSON], SearchStrategy[Any]]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
    "boolean": lambda _: st.booleans(),
}


def _corrupted(draw: DrawFn, spec: JSON) -> JSON:
    """Return the spec with one value replaced, one field removed, or one field added."""
    bent = copy.deepcopy(spec)
    container, key = draw(st.sampled_from([*_places(bent), (bent, "nodes")]))
    how = draw(st.sampled_from(["junk", "junk", "gone", "unknown"]))
    if how == "junk":
        container[key] = draw(_WRONG_VALUES)
    elif how == "gone":
        container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    else:
        bent[draw(st.sampled_from(["replicas", "Nodes", "x" * 300]))] = draw(_JSON)
    return bent


def _places(value: Any) -> Iterator[Place]:
    """Yield every place in a document that holds a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(entries):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
