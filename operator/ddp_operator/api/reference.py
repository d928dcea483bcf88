"""Build the API reference page from the CRD, with the same text as `kubectl explain`."""

from collections.abc import Iterator
from typing import Any

from ddp_operator.api.crd import PRINTER_COLUMNS, build_crd
from ddp_operator.api.rules import MANAGED_BY_RULE_MESSAGE, NAME_RULE_MESSAGE, SPEC_RULES

Schema = dict[str, Any]


def build_reference() -> str:
    """Return the reference page as Markdown."""
    version = build_crd()["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    visibility = ("always", "wide")
    columns = [
        f"| {c['name'].upper()} | {visibility[c.get('priority', 0)]} | {c['description']} |"
        for c in PRINTER_COLUMNS
    ]
    rules = [NAME_RULE_MESSAGE, *(r.message for r in SPEC_RULES), MANAGED_BY_RULE_MESSAGE]
    parts = [
        "# API reference: DDPJob (`ddp-trainer.dev/v1alpha1`)",
        "This page is generated from the CRD. `kubectl explain ddpjob.spec` shows the same text.",
        "## spec",
        _table(properties["spec"]),
        "## Rules between fields",
        "\n".join(f"- {text}" for text in rules),
        "## status",
        _table(properties["status"]),
        "## Columns of `kubectl get ddpjobs`",
        "\n".join(["| Column | Shown | Meaning |", "| --- | --- | --- |", *columns]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(schema: Schema) -> str:
    rows = [
        f"| `{path}` | {_kind(node)} | {_default(node)} | {node.get('description', '')} |"
        for path, node in _walk(schema, "")
    ]
    return "\n".join(["| Field | Type | Default | Meaning |", "| --- | --- | --- | --- |", *rows])


def _walk(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, node in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, node
        yield from _walk(node, f"{path}.")
        if isinstance(node.get("items"), dict):
            yield from _walk(node["items"], f"{path}[].")


def _kind(node: Schema) -> str:
    kind = str(node.get("type", "integer or string"))
    if "enum" in node:
        return " \\| ".join(str(value) for value in node["enum"])
    limits = [f"{label} {node[key]}" for key, label in _LIMIT_LABELS.items() if key in node]
    return ", ".join([kind, *limits])


_LIMIT_LABELS = {"minimum": "≥", "maximum": "≤", "maxLength": "maximum characters:"}


def _default(node: Schema) -> str:
    if "default" not in node:
        return ""
    return f"`{node['default']}`" if node["default"] != "" else '`""`'
