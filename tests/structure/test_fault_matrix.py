"""Each row of the fault matrix names tests that exist."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.fault_player.matrix import Row, rows

ROOT = Path(__file__).parents[2]


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of a file's functions, empty if there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8") if path.exists() else "")
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def missing(row: Row) -> list[str]:
    """Return the tests of a row that do not exist."""
    pairs = [(test, *test.split("::")) for test in row.tests]
    return [test for test, file, name in pairs if name not in functions(file)]


def test_every_row_of_the_fault_matrix_names_tests_that_exist() -> None:
    assert {row.title: missing(row) for row in rows() if missing(row)} == {}


def test_every_row_of_the_fault_matrix_has_a_test() -> None:
    assert len(rows()) > 100
    assert [row.title for row in rows() if not row.tests] == []


def test_fault_titles_are_short_and_different() -> None:
    titles = [row.title for row in rows()]
    assert [title for title, count in Counter(titles).items() if count > 1] == []
    assert [title for title in titles if len(title) > 90] == []


def test_check_finds_a_missing_test_and_a_row_without_one() -> None:
    here = "tests/structure/test_fault_matrix.py::test_every_row_of_the_fault_matrix_has_a_test"
    table = f"| a | b | - | `{here}`, `{here}s` |\n| c | d | - | `tests/none.py` |"
    first, second = rows(table)
    assert missing(first) == [f"{here}s"]
    assert second.tests == ()
