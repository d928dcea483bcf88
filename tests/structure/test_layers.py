"""The import contracts hold, each of them can fail, and no import cycles join packages."""

import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ddp_operator", "ddp_agent", "ddp_trainer", "ddp_wire")

FORBIDDEN = {
    "The operator's layers": ("operator/ddp_operator/api/base.py", "ddp_operator.builders"),
    "The cluster's layers": (
        "operator/ddp_operator/cluster/local/share.py",
        "ddp_operator.cluster.kube.paths",
    ),
    "Only handlers and app": ("operator/ddp_operator/runtime/health.py", "kopf"),
    "Only the cluster layer": ("operator/ddp_operator/reconcile/plan.py", "asyncio"),
    "The trainer's layers": ("trainer/ddp_trainer/errors.py", "ddp_trainer.config"),
    "The modules of a run": ("trainer/ddp_trainer/run/run.py", "ddp_trainer.run.saving"),
    "The agent's layers": ("trainer/ddp_agent/config.py", "ddp_agent.main"),
    "Operator, agent and trainer": ("trainer/ddp_trainer/seeds.py", "ddp_agent.config"),
    "ddp_wire imports no other": ("trainer/ddp_wire/machine.py", "ddp_trainer.errors"),
    "The operator never imports": ("operator/ddp_operator/cli/view.py", "torch"),
    "Only the agent's launcher": ("trainer/ddp_agent/main.py", "torch"),
    "The trainer knows nothing": ("trainer/ddp_trainer/stop.py", "kubernetes"),
}
"""For each contract, by the start of its name: a module and an import that breaks the contract."""


def contracts() -> list[str]:
    """Return the names of all import contracts in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]]


def lint(home: Path) -> dict[str, bool]:
    """Run lint-imports on a copy of the code. Return whether each contract is kept."""
    code = "import sys; sys.path[:0] = ['operator', 'trainer']; from importlinter.cli import "
    code += "lint_imports_command; lint_imports_command(['--no-cache'])"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=120, check=False
    )
    lines = [line.strip() for line in ended.stdout.splitlines()]
    found = {name: _has(lines, f"{name} KEPT") for name in contracts()}
    assert all(kept or _has(lines, f"{name} BROKEN") for name, kept in found.items()), ended
    return found


def _has(lines: list[str], start: str) -> bool:
    """Return whether a line begins with this text. The number of ignored imports may follow."""
    return any(line.startswith(start) for line in lines)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the packages and of the import contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("operator", "trainer"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    return tmp_path


@pytest.mark.slow
def test_each_import_contract_fails_on_a_forbidden_import(copy: Path) -> None:
    assert all(lint(copy).values())
    for file, module in FORBIDDEN.values():
        with (copy / file).open("a", encoding="utf-8") as source:
            source.write(f"\nimport {module}\n")
    assert not any(lint(copy).values())


def test_each_import_contract_has_a_forbidden_import_to_test_it() -> None:
    covered = {name for name in contracts() if any(name.startswith(start) for start in FORBIDDEN)}
    assert covered == set(contracts())
    assert len(FORBIDDEN) == len(contracts())


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_no_packages_import_each_other_in_a_cycle(package: str) -> None:
    graph = grimp.build_graph(package, cache_dir=None)
    parents = {module for module in graph.modules if graph.find_children(module)}
    for parent in sorted(parents):
        imports = imports_between_children(package, parent)
        # A cycle raises graphlib.CycleError.
        assert set(TopologicalSorter(imports).static_order()) == set(imports)


def imports_between_children(package: str, parent: str) -> dict[str, set[str]]:
    """Return the imports between the children of a package, at any depth, by child."""
    graph = grimp.build_graph(package, cache_dir=None)
    children = graph.find_children(parent)
    for child in children:
        graph.squash_module(child)
    return {
        child: (graph.find_modules_directly_imported_by(child) & children) - {child}
        for child in children
    }


def test_the_cycle_test_finds_a_cycle(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy / "example"
    for name, other in (("one", "two"), ("two", "one")):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        (folder / name / "part.py").write_text(f"import example.{other}.part\n", encoding="utf-8")
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(copy)
    found = imports_between_children("example", "example")
    assert found == {"example.one": {"example.two"}, "example.two": {"example.one"}}
