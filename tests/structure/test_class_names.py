"""No two classes of the product share a name, so that a name alone identifies a class.

Two packages may use the same private name, because no reader sees both classes. Within a package a
reader of a traceback or a search result could confuse them.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = (ROOT / "operator", ROOT / "trainer")


def classes_by_name() -> dict[str, list[str]]:
    """Return the places of all classes of the product, as package/path, by name."""
    found = defaultdict(list)
    for home in HOMES:
        for file in sorted(home.rglob("*.py")):
            for name in class_names(file.read_text(encoding="utf-8")):
                found[name].append(str(file.relative_to(home)))
    return found


def class_names(source: str) -> Iterable[str]:
    """Return the names of all classes in a module, nested ones included."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def ambiguous(classes: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the names that several classes share, private ones only within one package."""
    return {
        name: places
        for name, places in classes.items()
        if len(places) > (packages(places) if name.startswith("_") else 1)
    }


def packages(places: Iterable[str]) -> int:
    """Return the number of packages that contain these places."""
    return len({place.partition("/")[0] for place in places})


@pytest.mark.slow
def test_no_two_classes_share_a_name() -> None:
    found = classes_by_name()
    assert len(found) > 200
    assert ambiguous(found) == {}


def test_search_finds_names_of_nested_and_private_classes() -> None:
    assert class_names("class Plan:\n    class _Part: pass") == ["Plan", "_Part"]
    assert ambiguous({"Plan": ["a/plan.py", "b/plan.py"]})
    assert ambiguous({"_Part": ["a/plan.py", "a/other.py", "b/plan.py"]})
    assert not ambiguous({"_Part": ["a/plan.py", "b/plan.py"], "Plan": ["a/plan.py"]})
