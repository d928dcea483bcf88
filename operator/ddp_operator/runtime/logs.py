"""Log formatters that end each line with context fields, for people and for machines.

A worker sets the fields once in a `log_fields` block. All lines that are written inside that block,
in any module, contain them.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ddp_wire.logs import JsonFormatter
from ddp_wire.plain_text import escaped, is_plain

_fields: ContextVar[dict[str, str | int]] = ContextVar("fields", default={})  # noqa: B039 (replaced, never changed)


@contextlib.contextmanager
def log_fields(**fields: str | int | None) -> Iterator[None]:
    """Add fields to all log lines until the end of the block. Skip fields that are None."""
    token = _fields.set(_fields.get())
    add_log_fields(**fields)
    try:
        yield
    finally:
        _fields.reset(token)


def add_log_fields(**fields: str | int | None) -> None:
    """Add fields to all later log lines of the enclosing `log_fields` block."""
    known = {name: value for name, value in fields.items() if value is not None}
    _fields.set({**_fields.get(), **known})


def present_fields() -> dict[str, str | int]:
    """Return the fields of a log line that is written now."""
    return _fields.get()


class TextFormatter(logging.Formatter):
    """Formatter of lines like `time LEVEL logger: message job=team-a/digits attempt=2`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return one log line for any message. A traceback follows on separate lines."""
        line = escaped(super().formatMessage(record))
        return line + "".join(
            f" {name}={_quoted(value)}" for name, value in present_fields().items()
        )

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        """Return a traceback without the control characters that an exception may quote."""
        return "\n".join(map(escaped, super().formatException(ei).split("\n")))


def configure(level: str, style: str) -> None:
    """Configure logging to standard error, as text or JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(present_fields) if style == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # The reactor logs its end as a traceback; `app` logs it as one sentence.
    logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)


def _quoted(value: str | int) -> str:
    text = str(value)
    plain = text and is_plain(text) and not any(c.isspace() or c in '"=' for c in text)
    return text if plain else json.dumps(text)
