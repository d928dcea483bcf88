"""The tables of docs/develop/fault-matrix*.md: faults, and the tests that play them."""

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "docs" / "develop"
_PAGES = ("fault-matrix.md", "fault-matrix-runs.md", "fault-matrix-scheduling.md")
_CELLS = 4
_HEADS = {"fault", "---"}
_TEST = re.compile(r"`(tests/\S+?\.py)::(\w+)`")


@dataclass(frozen=True)
class Row:
    """One fault."""

    title: str
    tests: tuple[str, ...]
    """Node ids without parameters: path of the file from the root, `::` and the function."""


def rows(text: str | None = None) -> list[Row]:
    """Return the rows of a table, by default those of all pages, in their order."""
    if text is None:
        text = "\n".join((_FOLDER / page).read_text(encoding="utf-8") for page in _PAGES)
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == _CELLS and cells[0] not in _HEADS:
            tests = tuple(f"{file}::{name}" for file, name in _TEST.findall(cells[-1]))
            found.append(Row(cells[0], tests))
    return found


def titles() -> dict[str, str]:
    """Return the title of the first row that names a test, by the test's node id."""
    return {test: row.title for row in reversed(rows()) for test in row.tests}


def without_parameters(node_id: str) -> str:
    """Return the node id of a test's function, which all its parameters share."""
    return node_id.partition("[")[0]
