"""Load and validate a `RunConfig` from environment, document and command line.

Later sources override earlier ones: defaults, the environment's checkpoint variables, the document
(`--config` or the environment's), then `--section.key=value` arguments.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ddp_trainer.config import RunConfig
from ddp_trainer.errors import InputError
from ddp_wire.contract import Env

Document = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)

_CHECKPOINT_VARIABLES = {
    Env.CHECKPOINT_DIR: "directory",
    Env.CHECKPOINT_EVERY_STEPS: "every_steps",
    Env.CHECKPOINT_EVERY_SECONDS: "every_seconds",
    Env.CHECKPOINT_KEEP: "keep",
    Env.CHECKPOINT_START_OVER: "start_over",
}


def read_document(source: str) -> Document:
    """Read a configuration from JSON text or from the path of a JSON file.

    Raises:
        InputError: If the source is neither JSON text nor a JSON file, or not an object.
    """
    text, origin = source, "the given text"
    if not source.lstrip().startswith("{"):
        origin = source
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f'config: cannot read file "{source}": {_reason(error)}') from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"config: {origin} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"config: {origin} must be a JSON object, not {_shortened(document)}")
    return document


def read_overrides(arguments: Sequence[str]) -> Document:
    """Read `--section.key=value` arguments. A value that is not valid JSON is a string.

    Raises:
        InputError: If an argument has another form.
    """
    document: Document = {}
    for argument in arguments:
        path, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not path:
            raise InputError(f'argument "{argument}" must have the form --section.key=value')
        value = _value(text)
        for key in reversed(path.split(".")):
            value = {key: value}
        document = merge(document, value)
    return document


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # .5 and 5. are numbers to a user, but not valid JSON.
        return float(text) if _NUMBER.fullmatch(text) else text


def environment_document(environ: Mapping[str, str]) -> Document:
    """Return the settings in the contract's checkpoint variables, as a document."""
    section: Document = {}
    for variable, key in _CHECKPOINT_VARIABLES.items():
        text = environ.get(variable, "")
        if text:
            section[key] = text if key == "directory" else _value(text)
    return {"checkpoint": section} if section else {}


def merge(base: Document, over: Document) -> Document:
    """Return `base` overridden by the values of `over`, section by section."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def resolve(document: Document) -> RunConfig:
    """Validate a merged document and return it as a `RunConfig`.

    Raises:
        InputError: If the document is invalid. The message names the first wrong setting by its
            dotted path.
    """
    return check(RunConfig, document)


def check(model: type[Model], document: Document, prefix: str = "") -> Model:
    """Validate `document` against `model` and return the model's instance.

    Args:
        model: Any pydantic model. Unknown keys are errors unless the model allows extra keys.
        document: The user's document.
        prefix: Dotted path of this document in the whole configuration, with its final dot.

    Raises:
        InputError: If the document is invalid. The message names the first wrong setting by its
            dotted path.
    """
    known = list(_known_keys(model, prefix))
    for path in _unknown_keys(model, document, prefix):
        raise InputError(f'config: unknown key "{path}"{_suggestion(path, known)}')
    try:
        # As JSON, because only there a strict model accepts a list for a tuple.
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise InputError(_message(error, prefix, known)) from error


def describe() -> str:
    """Return the help text of all settings, with their defaults and descriptions."""
    lines = []
    for path, setting in _settings_of(RunConfig, ""):
        default = json.dumps(setting.get_default(call_default_factory=True))
        description = " ".join((setting.description or "").split())
        lines.append(f"  --{path}={default}\n        {description}")
    return "\n".join(lines)


def _settings_of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            yield from _settings_of(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _known_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if section := _section(field.annotation):
            yield from _known_keys(section, f"{prefix}{name}.")


def _unknown_keys(model: type[BaseModel], document: Document, prefix: str) -> Iterator[str]:
    if model.model_config.get("extra") == "allow":
        return
    fields = {name: field.annotation for name, field in model.model_fields.items()}
    fields |= {f.alias: f.annotation for f in model.model_fields.values() if f.alias}
    for key, value in document.items():
        if key not in fields:
            yield prefix + key
        elif isinstance(value, dict) and (section := _section(fields[key])):
            yield from _unknown_keys(section, value, f"{prefix}{key}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _suggestion(path: str, known: list[str]) -> str:
    """Return a hint with the most similar known key, by whole path or else by last part."""
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.7)
    if not close:
        by_name = {key.rpartition(".")[2]: key for key in reversed(known)}
        last = path.rpartition(".")[2]
        close = [by_name[n] for n in difflib.get_close_matches(last, by_name, n=1, cutoff=0.75)]
    return f'; did you mean "{close[0]}"?' if close else ""


def _message(error: ValidationError, prefix: str, known: Collection[str]) -> str:
    found = error.errors(include_url=False)
    first, path = found[0], _path(found[0], prefix, known)
    message = first["msg"]
    if first["type"] == "missing":
        return f'config: "{path}" must be set'
    if first["type"] == "value_error":
        where = f"{path}: " if first["loc"] else ""
        return f"config: {where}{message.removeprefix('Value error, ')}"
    # A setting with several types has one error for each of them.
    alike = [one["msg"].removeprefix("Input should be ") for one in found
             if _path(one, prefix, known) == path]  # fmt: skip
    must = "must be " + " or ".join(alike) if len(alike) > 1 else message
    must = must.replace("Input should be", "must be", 1)
    return f"config: {path} {must}, not {_shortened(first['input'])}"


def _path(error: ErrorDetails, prefix: str, known: Collection[str]) -> str:
    """Return the dotted path of the setting with an error."""
    path = prefix + ".".join(str(part) for part in error["loc"])
    parent, _, last = path.rpartition(".")
    # For a setting with several types the last part names the type. A number is a place in a list.
    names_type = path not in known and parent in known and not last.isdigit()
    return parent if names_type else path


def _shortened(value: Any) -> str:
    text = json.dumps(value, default=repr)
    limit = 60
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
