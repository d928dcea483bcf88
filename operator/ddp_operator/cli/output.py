"""Print what a verb has found: as text for people, or for programs."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import yaml

from ddp_operator.api.base import API_GROUP, KIND
from ddp_wire.plain_text import plain_text


def print_object(found: Any, output: str) -> None:
    """Print one object as JSON or YAML, or its name as kubectl does."""
    if output == "name":
        kind = str(found.get("kind") or KIND)
        group = f".{API_GROUP}" if kind == KIND else ""
        click.echo(f"{kind.lower()}{group}/{found['metadata']['name']}")
    elif output == "yaml":
        click.echo(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(json.dumps(found, indent=2, default=str))


def print_objects(found: Sequence[Any], output: str) -> None:
    """Print several objects as one List, or their names."""
    if output == "name":
        for one in found:
            print_object(one, output)
    else:
        print_object({"apiVersion": "v1", "kind": "List", "items": list(found)}, output)


def print_notes(notes: Iterable[str]) -> None:
    """Print what could not be read, to standard error."""
    for note in notes:
        click.echo(f"ddpjob: {plain_text(note)}", err=True)


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], styled: int = 1
) -> None:
    """Print rows below a head, as wide as their longest cell. Style one column of each row.

    On a terminal, the last column is cut at the width of the terminal.
    """
    rows = [[plain_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    click.echo(fit(_joined(head, widths)))
    for row, style in zip(rows, styles, strict=True):
        line = fit(_joined(row, widths))
        start = sum(widths[:styled]) + 2 * styled
        end = start + len(row[styled])
        click.echo(line[:start] + click.style(line[start:end], fg=style or None) + line[end:])


def fit(line: str) -> str:
    """Return a line that fits the terminal. Lines of a pipe or file stay whole."""
    if not _is_terminal():
        return line
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width else line[: width - 1] + "…"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _is_terminal() -> bool:
    return sys.stdout.isatty()
