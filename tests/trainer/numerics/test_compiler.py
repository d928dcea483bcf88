"""Tests of the check for a compiler."""

import re
import sysconfig
from pathlib import Path

import pytest
import torch

from ddp_trainer.errors import InputError
from ddp_trainer.numerics.compiler import check_compiler
from tests.trainer.runs import opened

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder as the only folder in PATH. Python's headers exist."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "include"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def add(program: Path) -> None:
    program.touch(mode=0o755)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (CPU, "config: compile needs a C++ compiler for cpu, but g++ is not installed; "),
        (GPU, "config: compile needs a C compiler for cuda, but gcc or clang is not installed; "),
    ],
    ids=["cpu", "cuda"],
)
@pytest.mark.usefixtures("programs")
def test_missing_compiler_is_reported_in_one_sentence(device: torch.device, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)) as raised:
        check_compiler(device)
    assert "trainer-compiler" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("device", "name"), [(CPU, "g++"), (GPU, "gcc"), (GPU, "clang")])
def test_one_installed_compiler_passes_the_check(
    programs: Path, device: torch.device, name: str
) -> None:
    with pytest.raises(InputError, match=name):
        check_compiler(device)
    add(programs / name)
    check_compiler(device)


def test_compiler_that_the_environment_names_must_exist(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "my-c++")
    add(programs / "g++")
    with pytest.raises(InputError, match=re.escape("but CXX=my-c++ is not installed")):
        check_compiler(CPU)
    add(programs / "my-c++")
    check_compiler(CPU)


def test_missing_headers_are_reported_in_one_sentence(programs: Path) -> None:
    add(programs / "g++")
    (programs / "include" / "Python.h").unlink()
    with pytest.raises(InputError, match=re.escape("Python.h does not exist; use an image of")):
        check_compiler(CPU)


@pytest.mark.usefixtures("programs")
def test_run_with_compile_and_no_compiler_ends_before_training() -> None:
    with pytest.raises(InputError, match="compile needs a C"):
        opened(compile=True)
