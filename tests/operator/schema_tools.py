"""Validation against the CRD schema as the API server does it, with JSON Schema."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError, validators

from ddp_operator.api.crd import Schema, build_crd


@functools.cache
def version() -> dict[str, Any]:
    """Return the only version of the generated CRD."""
    found: dict[str, Any] = build_crd()["spec"]["versions"][0]
    return found


def root_schema() -> Schema:
    found: Schema = version()["schema"]["openAPIV3Schema"]
    return found


def part(name: str) -> Schema:
    """Return the schema of `spec` or `status`."""
    found: Schema = root_schema()["properties"][name]
    return found


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every node of a schema with its path."""
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from walk(value, f"{path}.{name}")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


def strict(schema: Schema) -> Schema:
    """Return the schema with strict field validation, which refuses unknown fields."""
    out = dict(schema)
    if "properties" in out:
        out["properties"] = {k: strict(v) for k, v in out["properties"].items()}
        if not out.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    elif isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = strict(out["additionalProperties"])
    if "items" in out:
        out["items"] = strict(out["items"])
    return out


def _go_pattern(_: Any, pattern: str, instance: object, __: Schema) -> Iterator[ValidationError]:
    """Match as Go does: character classes are ASCII and $ matches only the end of the text."""
    if isinstance(instance, str) and not re.search(
        re.sub(r"(?<!\\)\$", r"\\Z", pattern), instance, re.ASCII
    ):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = validators.extend(Draft202012Validator, {"pattern": _go_pattern})


@functools.cache
def _validator(name: str) -> Any:
    return _Validator(strict(part(name)))


def server_accepts(name: str, value: object) -> bool:
    """Return whether the API server's schema accepts a value for `spec` or `status`."""
    return bool(_validator(name).is_valid(value))


def server_findings(name: str, value: object) -> list[str]:
    """Return the validation errors of the API server's schema."""
    return [error.message for error in _validator(name).iter_errors(value)]
