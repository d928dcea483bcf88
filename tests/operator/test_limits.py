"""All limits are in one module, each with a reason, and on a generated page."""

import ast
from pathlib import Path

import pytest

import ddp_operator
from ddp_operator import limits
from ddp_operator.limits import Backoff
from tools.limits_page import build_limits_page, rows

FILES = sorted(Path(ddp_operator.__file__).parent.rglob("*.py"))
HOME = "limits.py"


@pytest.mark.parametrize(
    ("failures", "seconds"), [(-1, 0.0), (0, 0.0), (1, 2.0), (2, 4.0), (3, 5.0), (10_000, 5.0)]
)
def test_backoff_doubles_from_the_first_to_the_longest_wait(failures: int, seconds: float) -> None:
    assert Backoff(first=2.0, longest=5.0).after(failures) == seconds


def test_each_limit_is_on_the_limits_page() -> None:
    page = build_limits_page()
    names = [name for name in vars(limits) if name.isupper() and not name.startswith("_")]
    assert len(names) > 40
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_limit_without_a_docstring_is_refused() -> None:
    with pytest.raises(TypeError, match="MOST_HELD has no docstring"):
        rows(ast.parse("MOST_HELD: Final = 1\nMOST_ORDERS: Final = 2\n"))


def test_no_other_module_has_a_rate_or_backoff_of_its_own() -> None:
    found = {
        f"{file.name}:{node.lineno}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"Rate", "Backoff"}
        and file.name != HOME
    }
    assert found == set()
