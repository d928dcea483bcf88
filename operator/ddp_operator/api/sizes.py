"""Check that what a job passes to its processes fits into their environment.

Linux starts no program with a longer variable, and CEL cannot measure a `config`.
"""

import json

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
    """Return one sentence about the first value with which no process can start, or None."""
    variables = [
        ("spec.config", Env.CONFIG, config_text(spec)),
        ("spec: command and args", Env.COMMAND, command_text(spec)),
        *((f"spec.env: {e.name}", e.name, e.value or "") for e in spec.env or []),
    ]
    for field, name, value in variables:
        most, size = LONGEST_VARIABLE - len(name) - len("="), len(value.encode())
        if size > most:
            return (
                f"{field}: must have at most {most:,} bytes, because Linux starts no program with a"
                f" longer environment variable, got {size:,}"
            )
    return None
