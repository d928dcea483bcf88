"""Build the parts of Markdown that the reference pages share."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Cells may contain line breaks and vertical bars."""
    lines = [head, ["---"] * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    """Return a text as the content of one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return a text in code format; nothing for an empty text."""
    return f"`{text}`" if text else ""


def page(*parts: str) -> str:
    """Return a Markdown page of paragraphs, tables and headings."""
    return "\n\n".join(parts) + "\n"
