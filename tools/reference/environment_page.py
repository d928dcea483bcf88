"""Build the documentation page about all environment variables that the product uses."""

import json
from collections.abc import Iterator
from typing import Any

from ddp_operator.runtime.settings import PREFIX, Settings
from ddp_wire.variables import Env
from tools.reference.attribute_docs import attribute_docs
from tools.reference.markdown import code, page, table
from tools.reference.variables import FOR_TORCHRUN, VARIABLES, Variable

_TEXT = """\
# Environment variables

This page is generated from the declarations in the code. Set variables of your own code in `spec.env` of a job. Their names must not
begin with `DDP_`."""  # noqa: E501
_OPERATOR = """\
## Operator

The chart sets most of these variables from [its values](../../charts/README.md). Set other variables by `extraEnv`."""  # noqa: E501
_WORKER = """\
## Worker pods

The operator sets these variables in the container of each worker pod. `ddp-trainer` also reads `DDP_TASK`, `DDP_CONFIG` and the
variables of checkpoints when a user runs it by hand."""  # noqa: E501
_BY_AGENT = """\
## Ranks

The agent sets these variables for torchrun and the ranks of an attempt."""
_OTHERS = """\
## Variables of other programs

*Set unless given* means that a value of the image or of `spec.env` takes effect."""
BY_AGENT = (Env.ATTEMPT, Env.BEATS_DIR)
"""Variables of the wire contract that the agent sets instead of the operator."""


def build_environment_page() -> str:
    """Return the page as Markdown."""
    docs = attribute_docs(Env)
    contract = [(code(one), docs[one.name]) for one in Env if one not in BY_AGENT]
    by_agent = [*((code(one), docs[one.name]) for one in BY_AGENT), *map(_short_row, FOR_TORCHRUN)]
    return page(
        _TEXT,
        _OPERATOR,
        table(("variable", "default", "meaning"), _settings()),
        _WORKER,
        table(("variable", "meaning"), contract),
        _BY_AGENT,
        table(("variable", "meaning"), by_agent),
        _OTHERS,
        *_of_others(),
    )


def _settings() -> Iterator[tuple[str, str, str]]:
    schema = Settings.model_json_schema()
    for name, node in schema["properties"].items():
        required = name in schema.get("required", ())
        default = "required" if required else code(_default(node.get("default")))
        yield code(PREFIX + name.upper()), default, node["description"]


def _default(value: Any) -> str:
    """Return a default as the text of a variable; nothing for a missing or empty one."""
    if isinstance(value, list):
        return ",".join(value)
    return "" if value is None else json.dumps(value).strip('"')


def _of_others() -> Iterator[str]:
    for program, variables in VARIABLES.items():
        yield f"### {program}"
        yield table(("variable", "access", "by", "meaning"), map(_row, variables))


def _row(one: Variable) -> tuple[str, str, str, str]:
    names, meaning = _short_row(one)
    return names, one.access, one.where, meaning


def _short_row(one: Variable) -> tuple[str, str]:
    return ", ".join(map(code, one.names)), one.meaning
