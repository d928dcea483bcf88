"""Tests of the process that writes a save from slots, called in the process of the test."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import assembly, background, background_process, load, writer
from ddp_trainer.checkpoint import format as checkpoint_format
from ddp_trainer.checkpoint.background import CopySlot, room_for
from ddp_trainer.checkpoint.background_process import Lead, SaveOrder, Writer
from ddp_trainer.checkpoint.contents import read_index
from ddp_trainer.checkpoint.fence import Fence
from ddp_trainer.checkpoint.format import MODEL, OPTIMIZER, CheckpointName, names_in
from ddp_trainer.checkpoint.snapshot import Snapshot
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.checkpoint.stream import read_stored
from ddp_trainer.checkpoint.tensor_file import Piece
from ddp_trainer.config import CheckpointConfig
from tests.trainer.checkpoint.test_manager import saved, whole

NAME = CheckpointName(7, 1)
WEIGHT = torch.arange(3000.0)


def slots() -> list[CopySlot]:
    """Return two slots with a part each of the same tensor."""
    filled = []
    for number in (1, 2):
        slot = CopySlot()
        piece = Piece("w", (3000,), WEIGHT, 0, 1000 * (number - 1), 1000 * number)
        own = {MODEL: [piece]}
        if number == 2:
            own[OPTIMIZER] = [Piece.whole("m/w", WEIGHT.double())]
        slot.fill(number, own)
        filled.append(slot)
    return filled


def job(directory: Path, filled: list[CopySlot], **lead: Any) -> SaveOrder:
    fence = Fence(directory, "job", 1)
    fence.open()
    rest: dict[str, Any] = {"state": {}, "groups": []}
    documents = writer.documents_of(whole(7, Snapshot({}, {}, rest)))
    given = {"known": [], "ratings": {}, "config": CheckpointConfig(keep=1), "total_bytes": 1}
    return SaveOrder(
        directory=str(directory),
        name=str(NAME),
        parts=2,
        claim=fence.claim | {"save": "01"},
        slots=[(os.getpid(), slot.descriptor) for slot in filled],
        lead=Lead(documents=documents, **(given | lead)),
    )


def statuses(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_save_is_committed_with_the_bits_of_the_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 3)
    Writer(job(tmp_path, slots(), known=["step-00000003.attempt-1"])).run()
    assert load.choose(tmp_path).name == NAME
    (stored,) = read_index(tmp_path / str(NAME))[MODEL]
    assert read_stored(stored).equal(WEIGHT)
    last = statuses(capsys)[-1]
    assert last["state"] == "done"
    assert last["known"] == [str(NAME)]
    assert last["bytes"] > WEIGHT.nbytes
    assert names_in(tmp_path) == [NAME]  # The older one is deleted, because keep is 1.


def test_process_that_takes_over_keeps_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = job(tmp_path, slots())
    finish = assembly.finish

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(assembly, "finish", die)
    with pytest.raises(KeyboardInterrupt):
        Writer(save).run()
    monkeypatch.setattr(assembly, "finish", finish)
    capsys.readouterr()
    Writer(save).run()
    assert statuses(capsys)[-1]["bytes"] == 0  # Both parts were there.
    assert load.choose(tmp_path).name == NAME
    Writer(save).run()  # It was committed just before its process died.
    assert statuses(capsys)[-1]["state"] == "done"


def test_folder_of_another_save_is_not_used(tmp_path: Path) -> None:
    filled = slots()
    save = job(tmp_path, filled)
    other = save.model_copy(update={"claim": save.claim | {"save": "02"}, "slots": [], "parts": 0})
    assembly.begin(tmp_path, NAME, other.claim, lambda: None)
    (tmp_path / f"{NAME}.tmp" / "stale").touch()
    Writer(save).run()
    assert not (tmp_path / str(NAME) / "stale").exists()


def test_full_volume_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = job(tmp_path, slots(), total_bytes=30 << 20)
    blocks = iter([10 << 20, 100 << 20])
    waits: list[float] = []
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda _: SimpleNamespace(f_bavail=next(blocks), f_frsize=1),
    )

    def wait(seconds: float) -> None:
        assert names_in(tmp_path) == []
        waits.append(seconds)

    monkeypatch.setattr(time, "sleep", wait)
    Writer(save).run()
    found = statuses(capsys)
    assert [status["error"] for status in found if status["state"] == "failed"] == [
        "the checkpoint needs 46 MiB, and the volume has only 10 MiB free"
    ]
    assert waits == [0.5]
    assert load.choose(tmp_path).name == NAME


def limit_space(monkeypatch: pytest.MonkeyPatch, directory: Path, capacity: int) -> None:
    """Give the volume of a directory this many bytes for checkpoints, without a reserve."""

    def statvfs(_: object) -> SimpleNamespace:
        blocks = sum(file.stat().st_blocks for file in directory.glob("step-*/*"))
        return SimpleNamespace(f_bavail=capacity - 512 * blocks, f_frsize=1)

    monkeypatch.setattr(background_process, "_RESERVE_BYTES", 0)
    monkeypatch.setattr(os, "statvfs", statvfs)


class WaitedError(Exception):
    """Error for a wait that a test does not expect, or with which it ends."""


def refuse_to_wait(_: float) -> None:
    raise WaitedError


def after_first_call(first: Any, function: Any) -> Any:
    """Return a function that calls `first` once, and then another function."""
    left = [first]

    def call(*arguments: Any, **named: Any) -> Any:
        return (left.pop() if left else function)(*arguments, **named)

    return call


def fail(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


def test_second_try_needs_only_the_space_that_the_first_one_has_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = job(tmp_path, slots(), total_bytes=1 << 20)
    limit_space(monkeypatch, tmp_path, capacity=1 << 20)
    monkeypatch.setattr(assembly, "finish", after_first_call(fail, assembly.finish))
    monkeypatch.setattr(time, "sleep", after_first_call(lambda _: None, refuse_to_wait))
    Writer(save).run()
    failed = [status["error"] for status in statuses(capsys) if status["state"] == "failed"]
    assert failed == ["[Errno 5] Input/output error"]
    assert load.choose(tmp_path).name == NAME


@pytest.mark.parametrize("written", ["put", "finish"])
def test_process_that_takes_over_needs_only_the_rest_of_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The process is killed after its first file, or after all of them."""
    save = job(tmp_path, slots(), total_bytes=1 << 20)
    limit_space(monkeypatch, tmp_path, capacity=1 << 20)
    owner: Any = assembly if written == "finish" else PendingFolder
    real = getattr(owner, written)

    def die(*arguments: Any, **named: Any) -> Any:
        if written == "put":
            found = real(*arguments, **named)
            if arguments[1].startswith("save"):
                return found
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, written, die)
    with pytest.raises(KeyboardInterrupt):
        Writer(save).run()
    monkeypatch.setattr(owner, written, real)
    monkeypatch.setattr(time, "sleep", refuse_to_wait)
    Writer(save).run()
    assert load.choose(tmp_path).name == NAME


def test_process_of_another_node_counts_only_the_files_of_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = slots()
    save = job(tmp_path, filled)
    own = save.model_copy(update={"lead": None, "slots": save.slots[1:]})
    assembly.begin(tmp_path, NAME, save.claim, lambda: None)
    assembly.write_part(tmp_path, NAME, (1, 2), save.claim, {MODEL: [bytes(1 << 20)]})
    limit_space(monkeypatch, tmp_path, capacity=(1 << 20) + filled[1].size // 2)
    monkeypatch.setattr(time, "sleep", refuse_to_wait)
    with pytest.raises(WaitedError):
        Writer(own).run()
    assert "the volume has only 0 MiB free" in statuses(capsys)[-1]["error"]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_failed_tries_leave_no_slot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = job(tmp_path, slots())
    before = open_files()
    monkeypatch.setattr(assembly, "finish", fail)
    monkeypatch.setattr(assembly, "write_part", fail)
    monkeypatch.setattr(time, "sleep", after_first_call(lambda _: None, refuse_to_wait))
    with pytest.raises(WaitedError):
        Writer(save).run()
    assert open_files() == before


def test_document_that_is_too_large_is_reported_like_an_error_of_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = job(tmp_path, slots())
    monkeypatch.setattr(checkpoint_format, "LARGEST_MANIFEST", 100)
    monkeypatch.setattr(time, "sleep", refuse_to_wait)
    with pytest.raises(WaitedError):
        Writer(save).run()
    last = statuses(capsys)[-1]
    assert last["state"] == "failed"
    assert last["error"].startswith("checkpoint: the manifest of 5 files would have ")


def test_holes_of_a_file_do_not_count_as_space_that_the_save_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = job(tmp_path, slots(), total_bytes=30 << 20)
    assembly.begin(tmp_path, NAME, save.claim, lambda: None)
    with (tmp_path / f"{NAME}.tmp" / "model-00001-of-00002.safetensors").open("wb") as file:
        file.truncate(1 << 30)
    limit_space(monkeypatch, tmp_path, capacity=10 << 20)
    monkeypatch.setattr(time, "sleep", refuse_to_wait)
    with pytest.raises(WaitedError):
        Writer(save).run()
    assert statuses(capsys)[-1]["error"] == (
        "the checkpoint needs 30 MiB, and the volume has only 10 MiB free"
    )


def test_newer_attempt_ends_the_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = job(tmp_path, slots())
    Fence(tmp_path, "job", 2).open()
    Writer(save).run()
    assert statuses(capsys)[-1]["state"] == "fenced"
    assert names_in(tmp_path) == []


def test_rate_is_limited(tmp_path: Path) -> None:
    save = job(tmp_path, slots()).model_copy(update={"rate": 100_000.0})
    begin = time.monotonic()
    Writer(save).run()
    assert time.monotonic() - begin > 0.3  # For 36,000 bytes.


def test_slot_keeps_its_memory_and_holds_only_the_newest_part(tmp_path: Path) -> None:
    (slot, other) = slots()
    before = slot.size
    slot.fill(1, {MODEL: [Piece("w", (3000,), WEIGHT + 1, 0, 0, 1000)]})
    assert slot.size == before
    Writer(job(tmp_path, [slot, other])).run()
    (stored,) = read_index(tmp_path / str(NAME))[MODEL]
    assert read_stored(stored)[:1000].equal(WEIGHT[:1000] + 1)


def test_copy_that_does_not_fit_into_memory_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "memory_limit", lambda: (100 << 20, Path("memory.max")))
    monkeypatch.setattr(background, "memory_bytes", lambda: 30 << 20)
    assert room_for(5 << 20) is None
    assert room_for(7 << 20) == (
        "a copy of the state needs 7 MiB more and 64 MiB of reserve, and the container's memory"
        " limit has 70 MiB left"
    )
