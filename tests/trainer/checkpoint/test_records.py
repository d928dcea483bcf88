"""Tests of the folder of records: which one counts, and what happens to all others."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import record_writer, records
from ddp_trainer.checkpoint.format import (
    MANIFEST,
    MODEL,
    STATE,
    CheckpointName,
    write_manifest,
)
from ddp_trainer.checkpoint.record_choice import choose
from ddp_trainer.checkpoint.record_writer import NoRoomError
from ddp_trainer.checkpoint.records import Age, Division, Part
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.saved_state import SavedConfig, SavedState

ENDED = 2**22 - 1
"""A process id that Linux does not assign by default."""


def checkpoint(step: int, attempt: int) -> Checkpoint:
    state = SavedState(
        attempt=attempt,
        step=step,
        samples=step,
        seconds=1.0,
        data_size=9,
        world_size=2,
        scaler={},
        config=SavedConfig(seed=0),
    )
    rest: dict[str, Any] = {"state": {}, "groups": []}
    return Checkpoint(state, Snapshot({"w": torch.ones(2)}, {"m/w": torch.ones(2)}, rest))


def written(
    folder: Path,
    step: int,
    attempt: int = 1,
    *,
    rank: int | None = None,
    division: Division = "whole",
    job: str = "",
) -> bool:
    part = Part(
        step=step,
        attempt=attempt,
        rank=rank,
        writer=rank or 0,
        world_size=2,
        division=division,
        job=job,
    )
    return record_writer.write(folder, part, checkpoint(step, attempt))


def found(folder: Path) -> list[str]:
    return [str(part.name) for part in records.find(folder)]


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


def test_damaged_and_unfinished_parts_are_not_found_and_are_deleted_after_the_choice(
    tmp_path: Path,
) -> None:
    assert written(tmp_path, 6, attempt=1)
    assert written(tmp_path, 5, attempt=2, division="all")
    (tmp_path / "step-00000008.attempt-1.tmp").mkdir()
    with (tmp_path / "step-00000006.attempt-1" / MODEL).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    assert found(tmp_path) == ["step-00000005.attempt-2"]
    records.keep_only(tmp_path, CheckpointName(5, 2))
    assert present(tmp_path) == ["step-00000005.attempt-2"]


@pytest.mark.parametrize("division", ["own", "all"])
def test_ranks_of_a_node_share_the_check_of_all_parts(tmp_path: Path, division: Division) -> None:
    for rank in (0, 1, None):
        assert written(tmp_path, 5, rank=rank, division=division)
    shares = [records.find(tmp_path, index, 2) for index in range(2)]
    assert [[part.rank for part in share] for share in shares] == [[None, 1], [0]]


def test_part_that_was_copied_to_another_name_is_not_found(tmp_path: Path) -> None:
    assert written(tmp_path, 5, rank=0, division="all")
    part = tmp_path / "step-00000005.attempt-1.rank-0"
    for name in ("step-00000005.attempt-1.rank-1", "step-00000005.attempt-1",
                 "step-00000005.attempt-2.rank-0", "step-00000006.attempt-1.rank-0"):  # fmt: skip
        shutil.copytree(part, tmp_path / name)
    assert found(tmp_path) == [part.name]


def test_part_with_another_update_in_its_state_is_not_found(tmp_path: Path) -> None:
    assert written(tmp_path, 5, rank=0, division="all")
    assert written(tmp_path, 6, rank=1, division="all")
    one, other = sorted(tmp_path.glob("step-*"))
    shutil.copy(other / STATE, one / STATE)
    (one / MANIFEST).unlink()
    write_manifest(one, CheckpointName(5, 1))
    assert found(tmp_path) == [other.name]


def warned(folder: Path, job: str = "") -> list[str]:
    sentences: list[str] = []
    assert records.find(folder, job=job, warn=sentences.append) == []
    return [sentence.replace(str(folder), "…") for sentence in sentences]


def test_damaged_part_is_one_sentence(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    (tmp_path / "step-00000005.attempt-1" / MODEL).unlink()
    assert warned(tmp_path) == [
        "the state in memory at …/step-00000005.attempt-1 is not used: model.safetensors is missing"
    ]


def test_record_of_another_job_is_not_used(tmp_path: Path) -> None:
    assert written(tmp_path, 5, job="theirs")
    assert warned(tmp_path, job="ours") == [
        "the state in memory at …/step-00000005.attempt-1 is not used: another job wrote it"
    ]
    assert len(records.find(tmp_path, job="theirs")) == 1


def test_folder_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (sentence,) = warned(tmp_path / "file")
    assert sentence.startswith("the states in memory cannot be read, so none is used: [Errno 20]")


def test_folder_without_records_has_no_parts(tmp_path: Path) -> None:
    assert found(tmp_path) == found(tmp_path / "missing") == []


def test_at_most_two_attempts_start_from_one_record(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    for _ in range(2):
        assert choose([records.find(tmp_path)], Age())[0] is not None
        records.count_start(tmp_path, CheckpointName(5, 1))
    choice, warnings = choose([records.find(tmp_path)], Age())
    assert choice is None
    (sentence,) = warnings
    assert sentence == (
        "the state after update 5 in memory is not used again, because 2 attempts have started"
        " from it"
    )
    records.keep_only(tmp_path, None)
    assert present(tmp_path) == []


def test_part_that_needs_others_leaves_older_records(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    assert written(tmp_path, 6, attempt=2, rank=0, division="all")
    assert written(tmp_path, 6, attempt=2, division="all")
    assert len(found(tmp_path)) == 3
    assert written(tmp_path, 7, attempt=3, rank=1, division="own")
    assert written(tmp_path, 7, attempt=3, division="own")
    assert found(tmp_path) == ["step-00000007.attempt-3", "step-00000007.attempt-3.rank-1"]


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
    for seconds in (0, 1 << 33):  # The clock may have been set back meanwhile.
        pending.mkdir()
        os.utime(pending, (seconds, seconds))
        assert written(tmp_path, 5)
        records.keep_only(tmp_path, None)


def test_record_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = (100 << 20, Path("memory.max"))
    monkeypatch.setattr(record_writer, "memory_limit", lambda: limit)
    monkeypatch.setattr(record_writer, "memory_bytes", lambda: 60 << 20)
    with pytest.raises(NoRoomError, match=r"needs 0 MiB .* memory limit has 40 MiB left"):
        written(tmp_path, 5)
    assert present(tmp_path) == []


def test_room_for_the_parts_of_other_ranks_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank has written 10 MiB of the 30 MiB that it announced."""
    pending = tmp_path / "step-00000005.attempt-1.rank-1.tmp"
    pending.mkdir()
    (pending / MODEL).write_bytes(bytes(10 << 20))
    (tmp_path / f"{pending.name}.owner").write_text(f"{os.getpid()} {30 << 20}")
    monkeypatch.setattr(record_writer, "memory_bytes", lambda: 0)
    for room, fits in ((83 << 20, False), (85 << 20, True)):
        monkeypatch.setattr(record_writer, "memory_limit", lambda room=room: (room, Path("max")))
        if fits:
            assert written(tmp_path, 5, rank=0, division="all")
            continue
        with pytest.raises(NoRoomError, match=r"needs 0 MiB \(20 MiB for all ranks\) and 64 MiB"):
            written(tmp_path, 5, rank=0, division="all")


def test_room_for_the_checkpoint_that_is_saved_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_writer, "memory_bytes", lambda: 0)
    monkeypatch.setattr(record_writer, "memory_limit", lambda: (100 << 20, Path("max")))
    part = Part(step=5, attempt=1, rank=None, writer=0, world_size=2)
    with pytest.raises(NoRoomError, match=r"needs 0 MiB .* has 60 MiB left"):
        record_writer.write(tmp_path, part, checkpoint(5, 1), 40 << 20)
    assert record_writer.write(tmp_path, part, checkpoint(5, 1), 30 << 20)


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_writer, "write_files", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path, 5)
    assert present(tmp_path) == []


def test_state_of_another_format_is_no_record(tmp_path: Path) -> None:
    assert written(tmp_path, 5)
    manifest = tmp_path / "step-00000005.attempt-1" / "MANIFEST.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    assert found(tmp_path) == []
