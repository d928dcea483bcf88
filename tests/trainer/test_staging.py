"""Staging: a node copies data once and never uses an incomplete copy."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ddp_trainer import staging
from ddp_trainer.errors import InputError
from ddp_trainer.task import RunEnv

RANKS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "shared" / "digits"
    (source / "train").mkdir(parents=True)
    (source / "train" / "0.txt").write_text("nought")
    return source


def test_only_one_rank_per_node_copies_the_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, copied, copying = threading.Barrier(RANKS), list[Path](), shutil.copy2

    def counted(source: Path, target: Path) -> None:
        copied.append(target)
        copying(source, target)

    def rank(_: int) -> str:
        barrier.wait(60)
        return staging.staged(folder / "train" / "0.txt", tmp_path / "node").read_text()

    monkeypatch.setattr("shutil.copy2", counted)
    with ThreadPoolExecutor(RANKS) as ranks:
        assert list(ranks.map(rank, range(RANKS))) == ["nought"] * RANKS
    assert len(copied) == 1


def test_staged_copy_is_reused_until_the_source_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    env = RunEnv(0, 1, 0, 1, torch.device("cpu"), 0)
    copy = env.staged(str(folder))
    assert copy.is_relative_to(tmp_path / "tmp")
    assert copy.name == folder.name
    (copy / "mark").touch()
    assert env.staged(folder) == copy
    (folder / "test").mkdir()
    os.utime(folder, ns=(1, 1))
    newer = env.staged(folder)
    assert newer != copy
    assert sorted(path.name for path in newer.iterdir()) == ["test", "train"]


def test_staged_file_keeps_its_name_and_an_incomplete_copy_is_not_used(tmp_path: Path) -> None:
    source = tmp_path / "text.bin"
    source.write_bytes(b"whole")
    copy = staging.staged(source, tmp_path / "node")
    copy.rename(copy.with_name(f".{copy.name}.tmp")).write_bytes(b"wh")
    assert staging.staged(source, tmp_path / "node") == copy
    assert copy.read_bytes() == b"whole"
    assert [path.name for path in copy.parent.iterdir()] == ["text.bin"]


def test_source_is_read_in_place_when_copying_fails(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node").write_text("not a folder")
    assert staging.staged(folder, tmp_path / "node") == folder
    assert f"warning: cannot stage {folder}, reading it in place: " in capsys.readouterr().err


def test_staged_copy_of_another_user_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = staging.staged(folder, tmp_path / "node")
    assert copy != folder
    monkeypatch.setattr("os.getuid", lambda: (tmp_path / "node").stat().st_uid + 1)
    assert staging.staged(folder, tmp_path / "node") == folder


def test_link_in_the_directory_for_temporary_files_is_not_followed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))
    link = temporary / f"ddp-staged-{os.getuid()}"
    link.symlink_to(home)
    assert staging.staged(folder) == folder
    assert list(home.iterdir()) == []
    assert f"{link} is a link, which another user may have created" in capsys.readouterr().err
    monkeypatch.setattr(Path, "is_symlink", lambda _: False)
    staging.staged(folder)
    assert list(home.iterdir()), "without the protection"


def test_full_disk_leaves_no_partial_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    assert staging.staged(folder, tmp_path / "node") == folder
    left = [path for path in (tmp_path / "node").rglob("*") if path.suffix != ".lock"]
    assert [list(path.iterdir()) for path in left] == [[]]


def test_missing_source_of_a_staged_copy_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data: cannot stage /none/such: it does not exist$"):
        staging.staged(Path("/none/such"), tmp_path)
