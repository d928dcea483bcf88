"""Tests of the manifests of large gangs, which list thousands of files."""

from pathlib import Path

import pytest

from ddp_trainer.checkpoint import assembly
from ddp_trainer.checkpoint import format as checkpoint_format
from ddp_trainer.checkpoint.format import (
    LARGEST_MANIFEST,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    BrokenCheckpointError,
    CheckpointName,
    manifest_bytes,
    part_name,
    verify,
    whole_name,
)
from ddp_trainer.checkpoint.parts import files_in
from ddp_trainer.checkpoint.remote.copying import entries_of, read_manifest
from ddp_trainer.checkpoint.store.base import Entry
from ddp_trainer.checkpoint.store.directory import DirectoryStore
from ddp_trainer.errors import InputError

NAME = CheckpointName(120, 2)
CLAIM = {"job": "a", "attempt": 2, "save": "01"}


def test_manifest_of_the_largest_gang_fits_into_the_limit() -> None:
    nodes, processes, kinds = 9_999, 8, 5
    parts = (part_name(MODEL, number, nodes) for number in range(1, nodes + 1))
    content = manifest_bytes(NAME, {part: {"bytes": 10**12, "crc32": "bd271470"} for part in parts})
    assert len(content) * processes * kinds <= LARGEST_MANIFEST


@pytest.mark.parametrize("number", [1, 99_999, 100_000, 159_984])
def test_part_of_a_gang_above_99999_ranks_belongs_to_its_whole_file(number: int) -> None:
    assert whole_name(part_name(MODEL, number, 159_984)) == MODEL


def test_every_reader_accepts_a_manifest_above_one_mebibyte(tmp_path: Path) -> None:
    folder = tmp_path / str(NAME)
    folder.mkdir()
    # Long names make a large manifest of few files.
    files = {f"{number:05d}{'x' * 240}": Entry(bytes=0, crc32="00000000") for number in range(4200)}
    for file in files:
        (folder / file).touch()
    content = manifest_bytes(NAME, files)
    assert len(content) > 1 << 20
    (folder / MANIFEST).write_bytes(content)
    verify(folder, required=())
    assert files_in(folder) == sorted(files)
    assert entries_of(read_manifest(DirectoryStore(tmp_path), str(NAME))) == files


def test_manifest_above_the_limit_is_refused_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly.begin(tmp_path, NAME, CLAIM, lambda: None)
    assembly.write_part(tmp_path, NAME, (1, 1), CLAIM, {MODEL: [b"x"], OPTIMIZER: [b"y"]})
    monkeypatch.setattr(checkpoint_format, "LARGEST_MANIFEST", 100)
    with pytest.raises(InputError) as caught:
        assembly.finish(tmp_path, NAME, 1, CLAIM, {}, may_commit=lambda: None)
    assert str(caught.value) == (
        "checkpoint: the manifest of 2 files would have 200 bytes, and at most 100 are possible;"
        " use fewer ranks, so that fewer of them write a part"
    )
    assert not (tmp_path / str(NAME)).exists()


def test_manifest_that_no_gang_can_write_counts_as_damaged(tmp_path: Path) -> None:
    folder = tmp_path / str(NAME)
    folder.mkdir()
    with (folder / MANIFEST).open("wb") as file:
        file.truncate(LARGEST_MANIFEST + 1)
    with pytest.raises(BrokenCheckpointError, match=f"{MANIFEST} is damaged"):
        verify(folder)
    with pytest.raises(BrokenCheckpointError, match=f"{MANIFEST} is damaged"):
        read_manifest(DirectoryStore(tmp_path), str(NAME))
