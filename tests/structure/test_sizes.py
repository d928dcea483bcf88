"""Tests that files and functions stay short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = ("operator", "trainer", "tests", "tools", "bench")
FILES = sorted(file for home in HOMES for file in (ROOT / home).rglob("*.py"))
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60


def test_no_file_has_more_than_400_lines() -> None:
    lengths = {f.relative_to(ROOT): len(f.read_text(encoding="utf-8").splitlines()) for f in FILES}
    assert len(lengths) > 300
    assert {file: n for file, n in lengths.items() if n > MOST_FILE_LINES} == {}


@pytest.mark.slow
def test_no_function_has_more_than_60_lines() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MOST_FUNCTION_LINES
    }
    assert found == set()
