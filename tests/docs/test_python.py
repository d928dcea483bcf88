"""Examples in Python compile, and what they import from this project exists."""

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import pytest

from tests.docs.pages import ROOT, fenced

OWN = ("ddp_agent", "ddp_operator", "ddp_trainer", "ddp_wire")


def missing(code: str) -> Iterator[str]:
    """Yield the names that an example imports from this project and that do not exist."""
    for node in ast.walk(ast.parse(code)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules, names = [node.module], [alias.name for alias in node.names]
        for module in modules:
            if module.partition(".")[0] in OWN:
                import_module(module)
                yield from (f"{module}.{one}" for one in names if not exists(module, one))


def exists(module: str, name: str) -> bool:
    """Return whether a module has a name, or a package a module of that name."""
    if hasattr(import_module(module), name):
        return True
    return hasattr(import_module(module), "__path__") and bool(find_spec(f"{module}.{name}"))


def test_examples_in_python_import_what_exists() -> None:
    blocks = [block for block in fenced("python") if block.page.is_relative_to(ROOT / "docs")]
    assert len(blocks) > 6
    assert [(block.place, one) for block in blocks for one in missing(block.text)] == []


def test_missing_name_is_found() -> None:
    assert list(missing("from ddp_trainer.task import Wait, Weighted")) == ["ddp_trainer.task.Wait"]
    with pytest.raises(ModuleNotFoundError):
        list(missing("import ddp_trainer.nothing"))
    with pytest.raises(SyntaxError):
        list(missing("def"))
