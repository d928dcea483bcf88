"""Check that each environment variable of a job's processes has a permitted size.

Linux cannot start a program with a longer variable, and CEL cannot compute the size of a `config`.
"""

import json
from collections.abc import Iterator
from typing import Any

from ddp_operator.api.spec import DDPJobSpec
from ddp_wire.variables import Env

LONGEST_VARIABLE = 131_071
"""Longest `NAME=value` of a Linux process, in bytes (MAX_ARG_STRLEN without the final zero)."""


def config_text(spec: DDPJobSpec) -> str:
    """Return the value of `DDP_CONFIG`."""
    return json.dumps(spec.config or {}, separators=(",", ":"))


def command_text(spec: DDPJobSpec) -> str:
    """Return the value of `DDP_COMMAND`."""
    return json.dumps([*(spec.command or []), *(spec.args or [])])


def oversize(spec: DDPJobSpec) -> str | None:
    """Return an error message about the first variable that is too long for any process, or None."""  # noqa: E501
    variables = [
        ("spec.config", Env.CONFIG, config_text(spec)),
        ("spec: command and args", Env.COMMAND, command_text(spec)),
        *((f"spec.env: {e.name}", e.name, e.value or "") for e in spec.env or []),
        *_of_steps(spec),
        *_of_overlay(spec),
    ]
    for field, name, value in variables:
        most, size = LONGEST_VARIABLE - len(name) - len("="), len(value.encode())
        if size > most:
            return (
                f"{field}: must have at most {most:,} bytes, because Linux starts no program with a"
                f" longer environment variable, got {size:,}"
            )
    return None


def _of_steps(spec: DDPJobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the variables of the init steps."""
    for step in spec.init or []:
        for one in step.env or []:
            yield f"spec.init: {step.name}: {one.name}", one.name, one.value or ""


def _of_overlay(spec: DDPJobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the variables of the podTemplate. Skip values of a wrong type, which the API server rejects."""  # noqa: E501
    overlay = (spec.pod_template and spec.pod_template.spec) or {}
    for kind in ("initContainers", "containers"):
        for container in _objects(overlay.get(kind)):
            for one in _objects(container.get("env")):
                name, value = one.get("name"), one.get("value")
                if isinstance(name, str) and isinstance(value, str):
                    yield f"spec.podTemplate.spec.{kind}: {name}", name, value


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
