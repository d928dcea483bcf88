"""The one error type that reaches the user as a sentence instead of a traceback."""

from __future__ import annotations


class HarnessError(Exception):
    """Something the user can cause or meet; its text is one clear sentence (and maybe a log)."""
