"""`make check` finds every generated file that differs from what it is generated from."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import generate
from tools.install_manifest import CHART, INSTALL, is_current

Change = Callable[[Path], object]


def append(name: str) -> Change:
    return lambda chart: (chart / name).write_text((chart / name).read_text() + "\n# new\n")


@pytest.mark.parametrize(
    ("change", "current"),
    [
        (append("README.md"), True),
        (append("values.yaml"), False),
        (append("templates/rbac.yaml"), False),
        (append("files/crd.yaml"), False),
        (lambda chart: (chart / "templates/rbac.yaml").unlink(), False),
        (lambda chart: (chart / "templates/new.yaml").touch(), False),
        (lambda chart: (chart / "Chart.yaml").rename(chart / "other.yaml"), False),
    ],
    ids=["page", "values", "template", "file", "removed", "added", "renamed"],
)
def test_install_manifest_of_another_chart_is_outdated(
    tmp_path: Path, change: Change, *, current: bool
) -> None:
    chart = tmp_path / "charts"
    shutil.copytree(CHART, chart)
    text = INSTALL.read_text("utf-8")
    assert is_current(text, chart), "run `make generate`"
    change(chart)
    assert is_current(text, chart) is current


def test_install_manifest_that_somebody_edited_is_outdated() -> None:
    text = INSTALL.read_text("utf-8")
    assert not is_current(text.replace("replicas: ", "replicas: 1", 1))
    assert not is_current(text.replace("# The chart", "# A chart", 1))
    assert not is_current("")


def test_check_names_an_outdated_install_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "install.yaml"
    copy.write_text(INSTALL.read_text("utf-8") + "\n")
    monkeypatch.setattr(generate, "INSTALL", copy)
    monkeypatch.setattr(generate, "ROOT", Path("/"))
    monkeypatch.setattr(generate, "generated", dict)
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    with pytest.raises(SystemExit, match=r"install\.yaml"):
        generate.main()
    monkeypatch.setattr(generate, "build_install_manifest", lambda: INSTALL.read_text("utf-8"))
    monkeypatch.setattr(sys, "argv", ["generate"])
    generate.main()
    assert copy.read_text("utf-8") == INSTALL.read_text("utf-8")
