"""Build the documentation page about all settings of the bundled loop, from its models."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_trainer.config import RunConfig
from ddp_trainer.config.settings import environment_document
from ddp_wire.variables import Env
from tools.reference.markdown import code, page, table

Schema = Mapping[str, Any]

_TEXT = """\
# Settings of the bundled loop

This page is generated from the models that check the settings. `ddp-trainer train --help` prints the same text. In a job they stand
under `spec.config`, and on a command line they are `--section.key=value`. An unknown key is an error that suggests the nearest known
one. A default of `null` means that the setting is absent."""  # noqa: E501
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def build_settings_page() -> str:
    """Return the page as Markdown."""
    schema = RunConfig.model_json_schema()
    return page(_TEXT, *_sections(schema, schema["$defs"]), _set_by_the_job())


def _sections(schema: Schema, models: Mapping[str, Schema], prefix: str = "") -> Iterator[str]:
    """Yield heading, description and table of a section, then those of its subsections."""
    plain = {k: v for k, v in schema["properties"].items() if "$ref" not in v}
    yield f"## {prefix.removesuffix('.') or 'Top level'}"
    yield schema["description"]
    yield table(
        ("key", "type", "default", "meaning"),
        [
            (code(prefix + key), kind(node), code(_default(node)), node["description"])
            for key, node in plain.items()
        ],
    )
    for key, node in schema["properties"].items():
        if key not in plain:
            model = models[node["$ref"].rpartition("/")[2]]
            yield from _sections(model, models, f"{prefix}{key}.")


def kind(node: Schema) -> str:
    """Return the type and limits of a setting, in the terms of JSON."""
    if "anyOf" in node:
        return " or ".join(kind(one) for one in node["anyOf"])
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " | ".join(str(value) for value in node["enum"])
    if node.get("type") == "array":
        return _list(node)
    if node.get("type") == "object":
        return "object"
    bounds = [f"{sign} {node[key]:g}" for key, sign in _BOUNDS.items() if key in node]
    return ", ".join([node["type"], *bounds])


def _list(node: Schema) -> str:
    if "prefixItems" in node:
        return f"list of {len(node['prefixItems'])}: {kind(node['prefixItems'][0])}"
    return f"list of: {kind(node['items'])}"


def _default(node: Schema) -> str:
    """Return the default as JSON; an empty list or object if no default is stated."""
    empty: dict[str, Any] = {"array": [], "object": {}}
    return json.dumps(node.get("default", empty.get(node.get("type", ""))))


def _set_by_the_job() -> str:
    """Return the settings that a job sets outside `spec.config`."""
    keys = environment_document(dict.fromkeys(Env, "1"))["checkpoint"]
    named = ", ".join(code(f"checkpoint.{key}") for key in keys)
    return (
        "## Settings that a job has elsewhere\n\n"
        f"The operator sets {named} from `spec.checkpoint` of the job. Set them there."
    )
