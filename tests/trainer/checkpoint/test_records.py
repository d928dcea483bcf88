"""Tests of the folder of records: which one counts, and what happens to all others."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import records
from ddp_trainer.checkpoint.format import MODEL, CheckpointName
from ddp_trainer.checkpoint.records import Age, NoRoomError
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.saved_state import NonFiniteCounts, SavedConfig, SavedState

ENDED = 2**22 - 1
"""A process id that Linux does not assign by default."""


def checkpoint(step: int, rollbacks: int = 0) -> Checkpoint:
    state = SavedState(
        step=step,
        samples=step,
        seconds=1.0,
        data_size=9,
        world_size=2,
        scaler={},
        nonfinite=NonFiniteCounts(rollbacks=rollbacks),
        config=SavedConfig(seed=0),
    )
    rest: dict[str, Any] = {"state": {}, "groups": []}
    return Checkpoint(state, Snapshot({"w": torch.ones(2)}, {"m/w": torch.ones(2)}, rest))


def written(folder: Path, step: int, attempt: int = 1, rollbacks: int = 0) -> bool:
    return records.write(folder, CheckpointName(step, attempt), checkpoint(step, rollbacks))


def present(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_record_replaces_older_ones(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    assert written(tmp_path, 7)
    assert written(tmp_path, 6, attempt=2)
    assert present(tmp_path) == ["step-00000006.attempt-2"]


def test_record_is_not_written_twice_and_never_replaces_a_later_step(tmp_path: Path) -> None:
    assert written(tmp_path, 7)
    assert not written(tmp_path, 7)
    assert not written(tmp_path, 6)
    assert present(tmp_path) == ["step-00000007.attempt-1"]


def test_newest_record_follows_rollbacks_then_steps(tmp_path: Path) -> None:
    for step, attempt, rollbacks in ((9, 3, 0), (7, 2, 1), (5, 1, 1)):
        assert written(tmp_path, step, attempt, rollbacks)
    found = records.newest(tmp_path)
    assert found is not None
    assert found.age == Age(1, 7)
    assert present(tmp_path) == ["step-00000007.attempt-2"]


def test_damaged_and_unfinished_records_are_deleted(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    assert written(tmp_path, 6, attempt=0)
    (tmp_path / "step-00000008.attempt-1.tmp").mkdir()
    with (tmp_path / "step-00000006.attempt-0" / MODEL).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    found = records.newest(tmp_path)
    assert found is not None
    assert found.path.name == "step-00000005.attempt-1"
    assert present(tmp_path) == ["step-00000005.attempt-1"]


def test_folder_without_records_has_no_newest_one(tmp_path: Path) -> None:
    assert records.newest(tmp_path) is None
    assert records.newest(tmp_path / "missing") is None


def test_at_most_two_attempts_start_from_one_record(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    for _ in range(2):
        found = records.newest(tmp_path)
        assert found is not None
        records.count_start(found)
    assert records.newest(tmp_path) is None
    assert present(tmp_path) == []


def test_rank_takes_the_place_of_a_rank_that_ended_while_it_wrote(tmp_path: Path) -> None:
    pending = tmp_path / "step-00000005.attempt-1.tmp"
    pending.mkdir()
    (tmp_path / f"{pending.name}.owner").write_text(str(ENDED))
    assert written(tmp_path, 5)
    assert present(tmp_path) == ["step-00000005.attempt-1"]


def test_rank_replaces_an_old_unfinished_record_that_names_no_process(
    tmp_path: Path,
) -> None:
    pending = tmp_path / "step-00000005.attempt-1.tmp"
    pending.mkdir()
    os.utime(pending, (0, 0))
    assert written(tmp_path, 5)


def test_record_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = (100 << 20, Path("memory.max"))
    monkeypatch.setattr(records, "memory_limit", lambda: limit)
    monkeypatch.setattr(records, "memory_bytes", lambda: 60 << 20)
    with pytest.raises(NoRoomError, match=r"needs 0 MiB .* memory limit has 40 MiB left"):
        written(tmp_path, 5)
    assert present(tmp_path) == []


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "write_checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path, 5)
    assert present(tmp_path) == []


def test_state_of_another_format_is_no_record(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    manifest = tmp_path / "step-00000005.attempt-1" / "MANIFEST.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    assert records.newest(tmp_path) is None
