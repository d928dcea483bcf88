"""Format the agent's log lines as text, or as one JSON object per line.

The output of the ranks is not changed: torchrun writes it with the prefix `[rank N] `.

Process: agent, standby and launcher.
"""

import logging
import os
import sys
import threading
from types import TracebackType

from ddp_wire.logs import JsonFormatter
from ddp_wire.variables import Env

_log = logging.getLogger("ddp_agent")
_attempt = 0


def configure() -> None:
    """Configure logging to standard error, in the format that the environment selects."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    if _is_json():
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda a: _log_uncaught(a.exc_type, a.exc_value, a.exc_traceback)


def begin_attempt(attempt: int) -> None:
    """Add the number of an attempt to all later log lines."""
    global _attempt  # noqa: PLW0603 (the agent runs one attempt at a time, in all its threads)
    _attempt = attempt


def format_line(message: str, level: int) -> str:
    """Return a log line without the logging module, because forks would inherit its state."""
    record = logging.LogRecord(_log.name, level, __file__, 0, message, None, None)
    return _formatter().format(record)


def _is_json() -> bool:
    return os.environ.get(Env.LOG_FORMAT) == "json"


def _formatter() -> logging.Formatter:
    return JsonFormatter(_context) if _is_json() else logging.Formatter("ddp-agent: %(message)s")


def _context() -> dict[str, str | int]:
    """Return the fields that all log lines of this process contain."""
    given = os.environ
    namespace, name = given.get(Env.JOB_NAMESPACE), given.get(Env.JOB_NAME)
    node = given.get(Env.NODE_INDEX, "")
    attempt = str(_attempt or given.get(Env.ATTEMPT, ""))
    fields: dict[str, str | int] = {}
    if namespace and name:
        fields |= {"job": f"{namespace}/{name}", "namespace": namespace}
    if node.isdigit():
        fields["node"] = int(node)
    if attempt.isdigit():
        fields["attempt"] = int(attempt)
    return fields


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Log an error that ends a thread as one line without a traceback."""
    exception = error or kind()
    _log.critical("uncaught %s", kind.__name__, exc_info=(kind, exception, trace))
