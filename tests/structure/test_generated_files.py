"""Tests that `make check` finds every outdated generated file."""

import sys
from pathlib import Path

import pytest

from tools import generate


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the only generated file, which does not exist yet."""
    path = tmp_path / "folder" / "page.md"
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: {path: "text\n"})
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", *arguments])
    generate.main()


def test_check_names_a_missing_and_an_outdated_file_and_writes_none(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"run `make generate`: folder/page\.md"):
        run(monkeypatch, "--check")
    assert not file.exists()
    run(monkeypatch)
    assert file.read_text("utf-8") == "text\n"
    run(monkeypatch, "--check")
    file.write_text("another text\n")
    with pytest.raises(SystemExit, match=r"folder/page\.md"):
        run(monkeypatch, "--check")
    assert file.read_text("utf-8") == "another text\n"
