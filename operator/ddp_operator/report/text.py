"""Convert texts of users to safe HTML."""

from html import escape

MOST_CHARACTERS = 2000
"""Maximum number of characters of one text on the page."""


def html_text(text: object) -> str:
    """Return a text as HTML, without control characters and cut at the limit."""
    plain = str(text)[:MOST_CHARACTERS]
    printable = (c for c in plain if c == "\n" or not (ord(c) < 32 or 127 <= ord(c) < 160))  # noqa: PLR2004
    return escape("".join(printable), quote=True).encode("utf-8", "replace").decode()


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
