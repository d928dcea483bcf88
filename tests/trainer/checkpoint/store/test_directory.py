"""Tests of the store in a directory."""

import errno
import json
import os
import zlib
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.store.base import Store
from ddp_trainer.checkpoint.store.directory import DirectoryStore

NAME = "step-00000007.attempt-1"


def write(store: Store, name: str = NAME) -> None:
    with store.begin(name) as pending:
        entry = pending.put("model", [b"weig", memoryview(b"hts")])
        assert entry == {"bytes": 7, "crc32": f"{zlib.crc32(b'weights'):08x}"}
        pending.commit(json.dumps({"model": entry}).encode(), lambda: None)


def test_committed_checkpoint_is_listed_and_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write(store)
    assert store.list() == [NAME]
    with store.open(NAME, "model") as file:
        assert file.read() == b"weights"


def test_missing_directory_is_empty(tmp_path: Path) -> None:
    assert DirectoryStore(tmp_path / "none").list() == []


def test_checkpoint_has_its_name_only_after_the_commit(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    seen: list[list[str]] = []
    with store.begin(NAME) as pending:
        pending.put("model", [b"weights"])
        pending.commit(b"{}", lambda: seen.append(store.list()))
    assert seen == [[f"{NAME}.tmp"]]


def test_checkpoint_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with store.begin(NAME) as pending:
        pending.put("model", [b"weights"])
    assert store.list() == []

    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output"), store.begin(NAME) as pending:
        pending.commit(b"{}", refuse)
    assert store.list() == []


def test_existing_name_is_refused_and_stays(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write(store)
    with pytest.raises(FileExistsError, match="exists already"), store.begin(NAME):
        pass
    assert store.list() == [NAME]


@pytest.mark.parametrize("suffix", ["", ".broken", ".tmp"])
def test_deleted_checkpoint_is_gone(tmp_path: Path, suffix: str) -> None:
    (tmp_path / (NAME + suffix)).mkdir()
    DirectoryStore(tmp_path).delete(NAME + suffix)
    assert list(tmp_path.iterdir()) == []
