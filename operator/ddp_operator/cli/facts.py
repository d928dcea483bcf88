"""Print labelled facts, wrapped at the width of a terminal."""

import shutil
import sys
import textwrap
from collections.abc import Iterable

import click

from ddp_operator.report.story import Fact

_LABEL = 12
"""Width of the column of labels."""


def print_story(facts: Iterable[Fact]) -> None:
    """Print one fact per line, with its label before it."""
    for line in story_lines(facts, _width()):
        click.echo(line)


def story_lines(facts: Iterable[Fact], width: int | None) -> list[str]:
    """Return the lines of facts, wrapped between words at a width. A path is never broken."""
    lines = []
    for fact in facts:
        parts = [fact.text]
        if width is not None:
            room = max(20, width - _LABEL)
            parts = textwrap.wrap(
                fact.text, room, break_long_words=False, break_on_hyphens=False
            ) or [""]
        for number, part in enumerate(parts):
            label = fact.label if number == 0 else ""
            styled = click.style(part, fg=None if fact.style == "dim" else fact.style or None)
            lines.append(f"{click.style(label.ljust(_LABEL), dim=True)}{styled}")
    return lines


def print_paragraph(text: str, style: str = "") -> None:
    """Print a paragraph, wrapped between words on a terminal."""
    width = _width()
    lines = [text]
    if width is not None:
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    for line in lines:
        click.echo(click.style(line, fg=style or None))


def _width() -> int | None:
    """Return the width of the terminal, or None for a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns
