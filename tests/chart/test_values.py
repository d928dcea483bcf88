"""Tests of values.yaml, of its schema and of the pages about it, which name the same values."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.harness.install import ROOT
from tools.values_page import read_values

JSON = dict[str, Any]
CHART = ROOT / "charts"
INJECTED = {"global"}
"""Values that Helm itself gives to every subchart."""


def leaves(values: JSON, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that are no mappings with content."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def names(schema: JSON, root: JSON, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that a schema names, with those of their parts."""
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    for name, one in schema.get("properties", {}).items():
        yield prefix + name
        yield from names(one, root, f"{prefix}{name}.")


def test_each_chart_value_is_on_the_page_once() -> None:
    listed = [value.name for value in read_values()]
    assert len(listed) == len(set(listed)) > 40
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for leaf in leaves(values):
        rows = [name for name in listed if leaf == name or leaf.startswith(f"{name}.")]
        assert len(rows) == 1, f"{leaf} needs one comment that begins with `# --`, has {rows}"
    assert all(value.text.endswith(".") for value in read_values())


def test_schema_and_page_list_the_same_chart_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    named = {n for n in names(schema, schema) if n.partition(".")[0] not in INJECTED}
    listed = {v.name for v in read_values()}
    assert listed <= named
    related = {
        name
        for name in named
        for row in listed
        if f"{row}.".startswith(f"{name}.") or f"{name}.".startswith(f"{row}.")
    }
    assert named == related
