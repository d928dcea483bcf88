"""Tools, benchmarks and tests import in one direction.

Tests import tools, never the reverse: a generator or the release must not depend on a test. Tools
import only the test cluster, tests/harness. A benchmark measures with the clients and faults that
the tests use, so it may import every helper of the tests, but no module with tests.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("operator", "trainer")


def imports(folder: str) -> dict[str, set[str]]:
    """Return the full names that each module of a folder imports."""
    return {
        str(file.relative_to(ROOT)): imported(ast.parse(file.read_text(encoding="utf-8")))
        for file in sorted((ROOT / folder).rglob("*.py"))
    }


def imported(module: ast.Module) -> set[str]:
    """Return the full names of all imports of a module."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def found(folder: str, *starts: str, except_for: tuple[str, ...] = ()) -> set[str]:
    """Return the imports of a folder that begin with one of these names."""
    return {
        f"{file}: {name}"
        for file, names in imports(folder).items()
        for name in names
        if name.startswith(starts) and not name.startswith(except_for or ("\0",))
    }


@pytest.mark.parametrize("folder", PRODUCT)
def test_product_imports_no_tests_tools_or_benchmarks(folder: str) -> None:
    assert found(folder, "tests.", "tools.", "bench.") == set()


def test_tools_import_of_the_tests_only_the_harness() -> None:
    assert found("tools", "tests.", "bench.", except_for=("tests.harness.",)) == set()
    assert found("tools", "tests.harness.")


def test_harness_imports_neither_tools_nor_benchmarks_nor_tests() -> None:
    names = found("tests/harness", "tests.", "tools.", "bench.", except_for=("tests.harness.",))
    assert {name for name in names if not name.startswith("tests/harness/test_")} == set()


def test_benchmarks_import_no_module_with_tests() -> None:
    modules = {name for name in found("bench", "tests.") if ".test_" in name or "conftest" in name}
    assert modules == set()
    assert found("bench", "tests.api.")


@pytest.mark.slow
def test_tests_import_no_benchmarks_except_their_own() -> None:
    others = {name for name in found("tests", "bench.") if not name.startswith("tests/bench/")}
    assert others == set()
