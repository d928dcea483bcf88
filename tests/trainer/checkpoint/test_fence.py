"""Tests of the fence: an older attempt can no longer write checkpoints."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from ddp_trainer.checkpoint import format as format_
from ddp_trainer.checkpoint import snapshot, writer
from ddp_trainer.checkpoint.fence import FENCE, Fence
from ddp_trainer.checkpoint.format import names_in
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.store import directory as store_directory
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import FencedError
from tests.trainer.checkpoint.opening import open_checked
from tests.trainer.checkpoint.test_manager import whole
from tests.trainer.rank_processes import Launcher


class Writer:
    """The checkpoints of one attempt, as rank 0 writes them."""

    def __init__(
        self, directory: Path, attempt: int | None, job: str = "uid", keep: int = 1
    ) -> None:
        self.directory = directory
        self.manager = CheckpointManager(CheckpointConfig(directory=str(directory), keep=keep))
        self.opened = open_checked(self.manager, attempt, {"by": attempt}, job)
        model = nn.Linear(2, 2)
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)

    def save(self, step: int) -> None:
        self.manager.save(whole(step, snapshot.take(self.model, self.optimizer)))

    def disable_fence(self) -> None:
        """Simulate that each check happens just before another attempt opens the directory."""
        assert self.manager._fence
        self.manager._fence.check = lambda: None  # type: ignore[method-assign]


def present(directory: Path) -> list[str]:
    return [str(name) for name in names_in(directory)]


def test_attempt_with_a_newer_fence_adds_and_deletes_no_checkpoint(tmp_path: Path) -> None:
    old = Writer(tmp_path, 1)
    old.save(10)
    new = Writer(tmp_path, 2)
    assert new.opened["resume"]["step"] == 10
    for step in (15, 20):
        with pytest.raises(FencedError) as caught:
            old.save(step)
        assert str(caught.value) == (
            f"checkpoint: attempt 1 may no longer write to {tmp_path}, because FENCE.json there"
            " names attempt 2; attempt 1 ends"
        )
        new.save(step - 3)
    assert present(tmp_path) == ["step-00000017.attempt-2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        FENCE,
        "config.json",
        "step-00000017.attempt-2",
    ]


def test_older_attempt_cannot_open_the_directory_of_a_newer_one(tmp_path: Path) -> None:
    Writer(tmp_path, 3).save(5)
    (tmp_path / "step-00000006.attempt-2.tmp").mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(FencedError, match="attempt 2 may no longer write"):
        Writer(tmp_path, 2)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert Writer(tmp_path, 3).opened["resume"]["step"] == 5
    assert Writer(tmp_path, 4).opened["attempt"] == 4


def test_late_checkpoint_of_an_old_attempt_replaces_no_checkpoint_and_is_kept(
    tmp_path: Path,
) -> None:
    old = Writer(tmp_path, 1)
    old.save(10)
    new = Writer(tmp_path, 2)
    old.disable_fence()
    new.save(12)
    old.save(20)
    new.save(14)
    assert present(tmp_path) == ["step-00000014.attempt-2", "step-00000020.attempt-1"]
    assert new.manager.newest
    assert new.manager.newest.step == 14
    # Resume and retention treat the late checkpoint like any other.
    third = Writer(tmp_path, 3)
    assert third.opened["resume"]["step"] == 20
    third.save(25)
    assert present(tmp_path) == ["step-00000025.attempt-3"]


def test_save_reports_the_fence_if_a_newer_attempt_deleted_the_pending_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Writer(tmp_path, 1)
    manifest_of = format_.manifest_of

    def manifest_after_newer_attempt(*arguments: Any) -> dict[str, Any]:
        Writer(tmp_path, 2)
        return manifest_of(*arguments)

    monkeypatch.setattr(writer, "manifest_of", manifest_after_newer_attempt)
    with pytest.raises(FencedError):
        old.save(1)
    assert present(tmp_path) == []


DAMAGED = (
    "",
    "{",
    "[]",
    '{"job": "uid"}',
    '{"job": 1, "attempt": "x"}',
    '{"job": "uid", "attempt": 2, "incarnation": 1}',
)


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_fence_is_overwritten(tmp_path: Path, text: str) -> None:
    run = Writer(tmp_path, 2)
    (tmp_path / FENCE).write_text(text)
    run.save(3)
    held = json.loads((tmp_path / FENCE).read_text())
    assert (held["job"], held["attempt"]) == ("uid", 2)
    (tmp_path / FENCE).write_text(text)
    assert Writer(tmp_path, 3).opened["resume"]["step"] == 3
    with pytest.raises(FencedError):
        run.save(4)


def test_later_of_two_gangs_of_the_same_attempt_is_the_only_one_that_writes(tmp_path: Path) -> None:
    """Both gangs have the same uid and number. The first saves before the second opens it."""
    first = Writer(tmp_path, 2)
    first.save(10)
    second = Writer(tmp_path, 2)
    assert second.opened["resume"]["step"] == 10
    with pytest.raises(FencedError) as caught:
        first.save(20)
    assert str(caught.value) == (
        f"checkpoint: attempt 2 may no longer write to {tmp_path}, because FENCE.json there names"
        " another process of attempt 2; attempt 2 ends"
    )
    second.save(15)
    assert present(tmp_path) == ["step-00000015.attempt-2"]


def test_fence_of_an_older_trainer_is_read(tmp_path: Path) -> None:
    run = Writer(tmp_path, 2)
    (tmp_path / FENCE).write_text('{"job": "uid", "attempt": 2}')
    run.save(3)  # It cannot tell which process wrote it.
    (tmp_path / FENCE).write_text('{"job": "uid", "attempt": 3}')
    with pytest.raises(FencedError):
        run.save(4)


def test_newer_attempt_overwrites_a_late_fence_of_an_older_one(tmp_path: Path) -> None:
    new = Writer(tmp_path, 2)
    old = Fence(tmp_path, "uid", 1)
    old._write()  # Its check happened before attempt 2 opened the directory.
    new.save(3)
    with pytest.raises(FencedError):
        old.check()


def test_volume_failure_is_not_reported_as_a_fenced_attempt(tmp_path: Path) -> None:
    run = Writer(tmp_path, 1)
    (tmp_path / FENCE).unlink()
    (tmp_path / FENCE).mkdir()
    with pytest.raises(IsADirectoryError):
        run.save(1)
    assert present(tmp_path) == []


def _crash(*_: object, **__: object) -> None:
    raise InterruptedError("the process ended here")


@pytest.mark.parametrize(("module", "step"), [(os, "replace"), (store_directory, "sync")])
def test_crash_while_the_fence_is_written_leaves_the_old_or_the_new_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    Writer(tmp_path, 1).save(4)
    with monkeypatch.context() as patch:
        patch.setattr(module, step, _crash)
        with pytest.raises(InterruptedError):
            Fence(tmp_path, "uid", 2).open()
    held = json.loads((tmp_path / FENCE).read_text())
    assert held["attempt"] == (1 if step == "replace" else 2)
    assert Writer(tmp_path, 2).opened["resume"]["step"] == 4


def test_job_that_opened_the_directory_last_holds_the_fence(tmp_path: Path) -> None:
    first = Writer(tmp_path, 7, job="one")
    first.save(10)
    second = Writer(tmp_path, 1, job="two")
    assert second.opened["resume"]["step"] == 10
    with pytest.raises(FencedError, match="names attempt 1 of another job"):
        first.save(11)
    second.save(12)
    assert present(tmp_path) == ["step-00000012.attempt-1"]


def test_attempts_without_a_number_get_the_next_free_one(tmp_path: Path) -> None:
    runs = [Writer(tmp_path, None, job="") for _ in range(3)]
    assert [run.opened["attempt"] for run in runs] == [0, 1, 2]
    saves: list[Callable[[int], None]] = [run.save for run in runs]
    with pytest.raises(FencedError):
        saves[1](1)
    saves[2](1)


@pytest.mark.slow
def test_run_stopped_by_the_fence_prints_one_sentence_and_exits_with_1(
    launcher: Launcher, tmp_path: Path
) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path / "ck"), "DDP_JOB_UID": "uid"}
    arguments = ["--task=sample_tasks:build", "--global_batch=6"]
    endless = ["--epochs=100000", "--checkpoint.every_steps=5", "--log.every_steps=100000"]
    old = launcher.train(*arguments, *endless, world=2, DDP_ATTEMPT="1", **environ)
    old.wait_until(lambda: len(names_in(tmp_path / "ck")) > 1)
    new = launcher.train(*arguments, "--max_steps=1", world=1, DDP_ATTEMPT="2", **environ)
    assert new.wait() == [0]
    assert old.wait()[0] == 1
    sentence = f"checkpoint: attempt 1 may no longer write to {tmp_path / 'ck'}, because FENCE.json"
    assert old.err(0) == f"{sentence} there names attempt 2; attempt 1 ends\n"
    late = launcher.train(*arguments, world=2, DDP_ATTEMPT="1", **environ)
    assert late.wait() == [1, 1]
    assert late.err(0).startswith("checkpoint: attempt 1 may no longer write")
    assert late.err(1) == ""
