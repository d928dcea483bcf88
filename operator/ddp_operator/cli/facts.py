"""Print labelled facts, wrapped at the width of a terminal."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from ddp_operator.client.backend import event_time
from ddp_operator.report.story import Fact
from ddp_wire.plain_text import plain_lines, plain_text

_DURATION = re.compile(r"\d (?:d|h|min|s|ms)\b(?: \d+ (?:h|min|s)\b)?")
_JOINER = "\N{NO-BREAK SPACE}"
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
        text = plain_lines(fact.text)
        parts = [text]
        if width is not None:
            room = max(20, width - _LABEL)
            parts = _wrapped(text, room)
        for number, part in enumerate(parts):
            label = fact.label if number == 0 else ""
            styled = click.style(part, fg=fact.style or None)
            lines.append(f"{click.style(label.ljust(_LABEL), dim=True)}{styled}")
    return lines


def print_paragraph(text: str, style: str = "") -> None:
    """Print a paragraph, wrapped between words on a terminal."""
    width, text = _width(), plain_lines(text)
    lines = [text]
    if width is not None:
        lines = _wrapped(text, width)
    for line in lines:
        click.echo(click.style(line, fg=style or None))


def print_events(events: Sequence[dict[str, Any]]) -> None:
    """Print Events with time, reason, number of occurrences and message."""
    # Any user with the right to create Events in the namespace may have written them.
    reasons = [plain_text(str(event.get("reason") or "")) for event in events]
    room = max(map(len, reasons))
    width = _width()
    for event, reason in zip(events, reasons, strict=True):
        count = event.get("count") or (event.get("series") or {}).get("count") or 1
        times = f" (x{count})" if count > 1 else ""
        message = " ".join(plain_text(str(event.get("message") or "")).split()) + times
        clock = _clock(plain_text(event_time(event)))
        start = len(clock) + room + 4
        parts = [message]
        if width is not None:
            parts = _wrapped(message, max(20, width - start))
        warns = event.get("type") == "Warning"
        shown = click.style(reason.ljust(room), fg="yellow" if warns else None)
        click.echo(f"{clock}  {shown}  {parts[0]}")
        for part in parts[1:]:
            click.echo(" " * start + part)


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text. A path is never broken, nor a duration such as 3 min 20 s."""
    joined = _DURATION.sub(lambda found: found[0].replace(" ", _JOINER), text)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINER, " ") for line in lines] or [""]


def _clock(time: str) -> str:
    """Return the local time of an Event, with its date if that is not today."""
    try:
        at = datetime.fromisoformat(time).astimezone()
    except ValueError:
        return time
    today = at.date() == datetime.now(UTC).astimezone().date()
    return at.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _width() -> int | None:
    """Return the width of the terminal, or None for a pipe or a file."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns
