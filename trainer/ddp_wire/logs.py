"""Format of JSON log lines of operator and agents."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line.

    A log call can add fields to its line: `extra={"fields": {"rank": 3}}`.
    """

    def __init__(self, context: Callable[[], Mapping[str, str | int]]) -> None:
        """Create a formatter that adds the fields of `context` to each line."""
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
