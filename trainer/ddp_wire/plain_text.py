"""Remove characters that change how a terminal or a log shows the text of other processes."""

import json
import re
from typing import Annotated

from pydantic import AfterValidator

_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1, with ESC, CR and NEL, without tab and line feed
    "\u2028\u2029"  # line and paragraph separator
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\ud800-\udfff"  # halves of surrogate pairs, which UTF-8 cannot encode
)
_CONTROL = re.compile(f"[{_CONTROLS}]")
_BREAK = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_NOT_ONE_LINE = re.compile(f"[\t\n{_CONTROLS}]")


def plain_text(text: str) -> str:
    """Return a text on one line, without control characters."""
    return _CONTROL.sub("", _BREAK.sub(" ", text))


def plain_lines(text: str) -> str:
    """Return a text without control characters, except tabs and line feeds."""
    return _CONTROL.sub("", text)


def escaped(text: str) -> str:
    """Return a text on one line, with control characters escaped as in JSON strings."""
    return _NOT_ONE_LINE.sub(lambda found: json.dumps(found.group())[1:-1], text)


def is_plain(text: str) -> bool:
    """Return whether a text is one line without control characters."""
    return _NOT_ONE_LINE.search(text) is None


PlainText = Annotated[str, AfterValidator(plain_text)]
"""One line of text from an untrusted process, without control characters."""
PlainLines = Annotated[str, AfterValidator(plain_lines)]
"""Lines of text from an untrusted process, without control characters except tabs and line
feeds."""
