"""The fault matrix tells of the tests that there are, and of no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "docs" / "fault-matrix.md"
_NAME = re.compile(r"def test_case_(\d{2,3}(?:_and_\d{2,3})*)")
Played = tuple[int, str]
"""A case's number, and the file whose tests play it."""


def rows() -> list[tuple[int, list[str]]]:
    """Each row's case, and the files of its tests."""
    found = []
    for line in MATRIX.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].isdigit():
            found.append((int(cells[0]), re.findall(r"`(tests/\S+\.py)`", cells[5])))
    return found


def played() -> set[Played]:
    """What the names of tests say."""
    return {
        (int(number), str(file.relative_to(ROOT)))
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in _NAME.findall(file.read_text(encoding="utf-8"))
        for number in name.split("_and_")
    }


def test_every_row_names_tests_that_exist() -> None:
    stated = {(case, file) for case, files in rows() for file in files}
    assert stated
    assert stated - played() == set()
    assert [case for case, files in rows() if not files] == []


def test_every_test_of_a_case_has_a_row() -> None:
    assert played() - {(case, file) for case, files in rows() for file in files} == set()


def test_rows_are_sorted_by_case() -> None:
    cases = [case for case, _ in rows()]
    assert cases == sorted(cases)
