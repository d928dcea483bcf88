"""Log lines that a person reads and a machine takes apart: what a line is about stands at its end.

Whoever takes up a job says so once, with `about`; every line that follows from it then carries the
job, in whichever module it is written.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_about: ContextVar[dict[str, str | int]] = ContextVar("about", default={})  # noqa: B039 (replaced, never changed)


@contextlib.contextmanager
def about(**fields: str | int | None) -> Iterator[None]:
    """Let all lines until the end of the block carry these fields. None adds nothing."""
    token = _about.set(_about.get())
    note(**fields)
    try:
        yield
    finally:
        _about.reset(token)


def note(**fields: str | int | None) -> None:
    """Let all further lines of the enclosing `about` carry these fields, too."""
    known = {name: value for name, value in fields.items() if value is not None}
    _about.set({**_about.get(), **known})


class TextFormatter(logging.Formatter):
    """time LEVEL logger: message job=team-a/digits attempt=2 cause=PodLost."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """One line, whatever the message holds. A traceback follows on lines of its own."""
        line = super().formatMessage(record).replace("\n", "\\n")
        return line + "".join(f" {name}={_quoted(value)}" for name, value in _about.get().items())


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_about.get(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(level: str, style: str) -> None:
    """Log to standard error, as text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # Its end, as a traceback: `app` says that in a sentence.
    logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)


def _quoted(value: str | int) -> str:
    text = str(value)
    plain = text and not any(c.isspace() or c in '"=' for c in text)
    return text if plain else json.dumps(text)
