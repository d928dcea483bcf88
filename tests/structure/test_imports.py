"""Tests of imports between packages: operator and agent share only the wire contract."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGENT = sorted((ROOT / "trainer" / "ddp_agent").rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Return the full names of all imports of a module, also within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", AGENT, ids=name)
def test_agent_imports_neither_operator_nor_trainer(path: Path) -> None:
    assert not {"kopf", "kubernetes", "ddp_operator", "ddp_trainer", "aiohttp"} & packages(path)


@pytest.mark.parametrize("path", AGENT, ids=name)
def test_docstring_of_each_agent_module_names_the_process_that_runs_it(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert text.splitlines()[-1].startswith("Process: ")


def test_ddp_wire_needs_the_standard_library_pydantic_and_prometheus_client_only() -> None:
    modules = sorted((ROOT / "trainer" / "ddp_wire").glob("*.py"))
    needed = {package for module in modules for package in packages(module)}
    assert needed - set(sys.stdlib_module_names) == {"ddp_wire", "pydantic", "prometheus_client"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        # The standby starts before the agent itself is imported.
        ("ddp_agent.__main__", ["torch", "pydantic", "http", "asyncio"]),
        ("ddp_agent.main", ["torch", "numpy", "kopf", "kubernetes", "ddp_operator"]),
        ("ddp_wire.contract", ["torch", "kopf", "aiohttp", "ddp_operator"]),
        ("ddp_operator.app", ["torch", "numpy", "ddp_trainer", "ddp_agent"]),
        ("ddp_operator.cli.main", ["torch", "numpy", "kopf", "ddp_trainer", "ddp_agent"]),
        ("ddp_operator.reconcile.decide", ["torch", "kopf", "kubernetes", "aiohttp"]),
        ("ddp_operator.runtime.controller", ["torch", "kopf", "kubernetes", "aiohttp"]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_import_of_a_module_loads_no_forbidden_package(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.strip() == "[]"
