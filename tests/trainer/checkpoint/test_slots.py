"""Tests of slots: memory that is allocated once, and parts that are never half new."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import record_writer, records, slots
from ddp_trainer.checkpoint.format import MODEL
from ddp_trainer.checkpoint.records import Division, Part
from ddp_trainer.checkpoint.snapshot import Checkpoint, Snapshot
from ddp_trainer.saved_state import SavedConfig, SavedState

SIZE = 3 << 18
"""Number of fp32 values in the test's weights: 3 MiB."""


def content(step: int, size: int = SIZE) -> Checkpoint:
    state = SavedState(
        step=step, samples=step, seconds=1.0, data_size=9, world_size=2, attempt=1, scaler={},
        config=SavedConfig(seed=0),
    )  # fmt: skip
    rest: dict[str, Any] = {"state": {}, "groups": []}
    weights = {"w": torch.full((size,), float(step)), "b": torch.ones(3)}
    return Checkpoint(state, Snapshot(weights, {"m/w": torch.ones(2)}, rest))


def part(step: int, rank: int | None = None) -> Part:
    division: Division = "whole" if rank is None else "all"
    return Part(step=step, attempt=1, rank=rank, writer=0, world_size=2, division=division)


def allocate(folder: Path, rank: int | None = None) -> int:
    name = part(0, rank).name
    return slots.allocate(folder, name, content(0).snapshot, lambda _: None)


def take(folder: Path, step: int, *, publish: bool = True) -> None:
    slot = slots.acquire(folder, part(step).name)
    assert slot is not None
    slot.fill(part(step), content(step))
    if publish:
        slot.publish(part(step))
    slot.release()


def present(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def blocks(folder: Path) -> set[tuple[int, int]]:
    """Return inode and allocated bytes of each file with weights."""
    found = [path.stat() for path in folder.glob(f"step-*/{MODEL}")]
    return {(one.st_ino, one.st_blocks * 512) for one in found}


def test_snapshots_use_the_same_two_slots(tmp_path: Path) -> None:
    assert allocate(tmp_path) == 2
    assert present(tmp_path) == ["step-spare-common-0", "step-spare-common-1"]
    first = blocks(tmp_path)
    assert len(first) == 2
    assert all(size >= 4 * SIZE for _, size in first)
    for step in range(1, 8):
        take(tmp_path, step)
    assert present(tmp_path) == ["step-00000006.attempt-1", "step-00000007.attempt-1"]
    assert blocks(tmp_path) == first
    assert [one.step for one in records.find(tmp_path)] == [6, 7]
    assert allocate(tmp_path) == 0


def test_killed_writer_leaves_the_newest_part(tmp_path: Path) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    take(tmp_path, 2)
    take(tmp_path, 3, publish=False)
    assert [one.step for one in records.find(tmp_path)] == [2]
    take(tmp_path, 4)
    assert [one.step for one in records.find(tmp_path)] == [2, 4]


@pytest.mark.parametrize("place", range(0, 100, 9))
def test_flipped_bit_of_a_snapshot_is_found(tmp_path: Path, place: int) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    take(tmp_path, 2)
    folder = tmp_path / "step-00000002.attempt-1"
    for file in sorted(path.name for path in folder.iterdir() if path.name != "MANIFEST.json"):
        data = bytearray((folder / file).read_bytes())
        data[place * len(data) // 100] ^= 1
        (folder / file).write_bytes(data)
        assert [one.step for one in records.find(tmp_path)] == [1], file
        data[place * len(data) // 100] ^= 1
        (folder / file).write_bytes(data)
    assert [one.step for one in records.find(tmp_path)] == [1, 2]


def test_only_complete_part_is_never_overwritten(tmp_path: Path) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    (spare,) = tmp_path.glob("step-spare-*")
    for path in spare.iterdir():
        path.unlink()
    spare.rmdir()
    assert slots.acquire(tmp_path, part(2).name) is None
    assert allocate(tmp_path) == 1


def test_slot_in_use_is_not_taken(tmp_path: Path) -> None:
    allocate(tmp_path)
    held = [slots.acquire(tmp_path, part(1).name) for _ in range(2)]
    assert None not in held
    assert slots.acquire(tmp_path, part(1).name) is None
    for slot in held:
        assert slot is not None
        slot.release()
    assert slots.acquire(tmp_path, part(1).name) is not None


def test_kinds_of_parts_have_their_own_slots(tmp_path: Path) -> None:
    for rank in (None, 1, 11):
        assert allocate(tmp_path, rank) == 2
    assert slots.missing(tmp_path, part(0, 1).name) == 0
    assert slots.missing(tmp_path, part(0, 2).name) == 2
    assert len(present(tmp_path)) == 6


def test_part_may_grow_and_shrink(tmp_path: Path) -> None:
    allocate(tmp_path)
    for step, size in ((1, SIZE), (2, 2 * SIZE), (3, 5), (4, SIZE)):
        slot = slots.acquire(tmp_path, part(step).name)
        assert slot is not None
        slot.fill(part(step), content(step, size))
        slot.publish(part(step))
        slot.release()
        assert records.find(tmp_path)[-1].step == step


def test_survivor_uses_the_memory_of_a_slot(tmp_path: Path) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    take(tmp_path, 2)
    first = blocks(tmp_path)
    assert record_writer.write(tmp_path, part(3), content(3))
    assert present(tmp_path) == ["step-00000003.attempt-1"]
    assert blocks(tmp_path) < first
    assert [one.step for one in records.find(tmp_path)] == [3]


def test_survivor_does_not_take_a_slot_in_use(tmp_path: Path) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    slot = slots.acquire(tmp_path, part(2).name)
    assert slot is not None
    assert record_writer.write(tmp_path, part(3), content(3))
    slot.fill(part(2), content(2))
    slot.publish(part(2))
    slot.release()
    assert [one.step for one in records.find(tmp_path)] == [2, 3]


def test_allocation_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    def check(length: int) -> None:
        checked.append(length)
        if len(checked) == 4:
            raise MemoryError

    checked: list[int] = []
    with pytest.raises(MemoryError):
        slots.allocate(tmp_path, part(0).name, content(0, 20 << 20).snapshot, check)
    assert present(tmp_path) == []
    assert max(checked) <= 16 << 20


def test_discard_keeps_the_newest_record(tmp_path: Path) -> None:
    allocate(tmp_path)
    take(tmp_path, 1)
    slots.discard(tmp_path)
    assert present(tmp_path) == ["step-00000001.attempt-1"]
    assert [one.step for one in records.find(tmp_path)] == [1]


def test_planted_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path.with_name("outside")
    outside.write_bytes(b"precious")
    folder = tmp_path / "records"
    folder.mkdir()
    allocate(folder)
    for spare in folder.glob("step-spare-*"):
        (spare / MODEL).unlink()
        (spare / MODEL).symlink_to(outside)
    slot = slots.acquire(folder, part(1).name)
    assert slot is not None
    with pytest.raises(OSError, match="symbolic link"):
        slot.fill(part(1), content(1))
    assert outside.read_bytes() == b"precious"
