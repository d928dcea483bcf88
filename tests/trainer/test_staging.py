"""Data are copied to a node once, whole or not at all."""

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


def test_of_all_ranks_of_a_node_one_copies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet, copied, copying = threading.Barrier(RANKS), list[Path](), shutil.copy2

    def counted(source: Path, target: Path) -> None:
        copied.append(target)
        copying(source, target)

    def rank(_: int) -> str:
        meet.wait(60)
        return staging.staged(folder / "train" / "0.txt", tmp_path / "node").read_text()

    monkeypatch.setattr("shutil.copy2", counted)
    with ThreadPoolExecutor(RANKS) as ranks:
        assert list(ranks.map(rank, range(RANKS))) == ["nought"] * RANKS
    assert len(copied) == 1


def test_a_task_finds_the_copy_again_until_the_source_changes(
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


def test_a_file_keeps_its_name_and_a_broken_copy_is_not_used(tmp_path: Path) -> None:
    source = tmp_path / "text.bin"
    source.write_bytes(b"whole")
    copy = staging.staged(source, tmp_path / "node")
    copy.rename(copy.with_name(f".{copy.name}.tmp")).write_bytes(b"wh")
    assert staging.staged(source, tmp_path / "node") == copy
    assert copy.read_bytes() == b"whole"
    assert [path.name for path in copy.parent.iterdir()] == ["text.bin"]


def test_what_cannot_be_copied_is_read_where_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node").write_text("not a folder")
    assert staging.staged(folder, tmp_path / "node") == folder
    assert f"warning: {folder} is read where it is" in capsys.readouterr().err


def test_what_another_user_laid_there_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = staging.staged(folder, tmp_path / "node")
    assert copy != folder
    monkeypatch.setattr("os.getuid", lambda: (tmp_path / "node").stat().st_uid + 1)
    assert staging.staged(folder, tmp_path / "node") == folder


def test_a_full_disk_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    assert staging.staged(folder, tmp_path / "node") == folder
    left = [path for path in (tmp_path / "node").rglob("*") if path.suffix != ".lock"]
    assert [list(path.iterdir()) for path in left] == [[]]


def test_a_source_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data: there is no /none/such to be staged$"):
        staging.staged(Path("/none/such"), tmp_path)
