"""The error type that is shown to the user as a message instead of a traceback."""

from __future__ import annotations


class HarnessError(Exception):
    """An error of the user or the machine. Its text is one sentence and maybe the end of a log."""
