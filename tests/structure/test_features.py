"""The table of features names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "develop" / "features.md"
_PLACES = (ROOT, ROOT / "trainer" / "ddp_trainer", ROOT / "tests" / "trainer")


def rows() -> dict[int, list[str]]:
    """Cells by number."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {int(cells[0]): cells for cells in found if len(cells) == 6 and cells[0].isdigit()}


def test_all_features_are_told_of() -> None:
    assert list(rows()) == list(range(1, 59))


def test_every_file_that_is_named_exists() -> None:
    named = {path for cells in rows().values() for path in re.findall(r"`([^`]+\.\w+)`", cells[2])}
    named |= {path for cells in rows().values() for path in re.findall(r"`([^`]+)`", cells[3])}
    assert len(named) > 50
    missing = {path for path in named if not any((place / path).exists() for place in _PLACES)}
    assert missing == set()


def test_what_is_there_has_a_test() -> None:
    untested = {n for n, cells in rows().items() if cells[2] and not cells[3]}
    assert untested == {50, 52}, "decisions are tested by nobody"
