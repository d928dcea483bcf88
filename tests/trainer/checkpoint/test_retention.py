"""Tests of the policies that keep checkpoints, and of what is never deleted."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint import retention
from ddp_trainer.checkpoint.format import MODEL, CheckpointName, names_in
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.reading import claimed, kept
from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.saved_state import SavedState
from tests.trainer.checkpoint.opening import open_checked
from tests.trainer.checkpoint.test_manager import own_state, saved, unrated, whole


def left(known: list[int], ratings: dict[int, float] | None = None, **settings: Any) -> list[int]:
    names = [CheckpointName(step, 1) for step in known]
    config = CheckpointConfig(**settings)
    found = retention.kept(names, config, lambda name: (ratings or {}).get(name.step, math.nan))
    return sorted(name.step for name in found)


def test_newest_checkpoints_are_kept() -> None:
    assert left([1, 2, 3, 4], keep=2) == [3, 4]
    assert left([5], keep=2) == [5]


def test_first_checkpoint_at_or_after_each_multiple_is_kept() -> None:
    assert left([10, 20, 30, 40, 50], keep=1, keep_every_steps=20) == [20, 40, 50]
    assert left([90, 130, 190, 210, 450, 460], keep=1, keep_every_steps=100) == [130, 210, 450, 460]


def test_kept_milestones_stay_the_same_after_the_others_are_deleted() -> None:
    steps: list[int] = []
    for step in range(7, 700, 13):
        steps = left([*steps, step], keep=1, keep_every_steps=100)
    assert steps == [111, 202, 306, 410, 501, 605, 696]


def test_best_checkpoint_is_kept() -> None:
    ratings = {1: -0.5, 2: -0.1, 3: -0.3}
    assert left([1, 2, 3, 4], ratings, keep=1, keep_best="loss") == [2, 4]
    assert left([1, 2, 3, 4], {}, keep=1, keep_best="loss") == [4]


def commit(manager: CheckpointManager, step: int, metrics: dict[str, float]) -> None:
    state = SavedState.model_validate(own_state(step) | {"metrics": metrics})
    assert manager.save(Checkpoint(state, whole(step).snapshot)) is not None


@pytest.mark.parametrize(("mode", "best"), [("min", 3), ("max", 2)])
def test_best_checkpoint_survives_newer_ones_and_attempts(
    tmp_path: Path, mode: str, best: int
) -> None:
    settings = {"keep": 1, "keep_best": "error", "keep_best_mode": mode}
    config = CheckpointConfig.model_validate({"directory": str(tmp_path), **settings})
    for attempt, values in ((1, [0.5, 0.9, 0.1]), (2, [0.4, 0.6])):
        manager = CheckpointManager(config)
        open_checked(manager, attempt, {})
        for number, value in enumerate(values, start=1 if attempt == 1 else 4):
            commit(manager, number, {"error": value, "other": -value})
    assert [name.step for name in names_in(tmp_path)] == [best, 5]
    assert not manager.is_best({"error": 0.5})
    assert manager.is_best({"error": 0.05 if mode == "min" else 0.95})
    assert not manager.is_best({"error": math.nan})
    assert not manager.is_best({})


def test_nothing_is_deleted_if_the_newest_checkpoint_is_not_complete(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002.attempt-1" / MODEL).unlink()
    known = [CheckpointName(1, 1), CheckpointName(2, 1)]
    config = CheckpointConfig(keep=1)
    assert retention.delete_others(tmp_path, known, config, unrated, lambda: None) == known
    assert names_in(tmp_path) == known


def test_checkpoint_that_is_read_is_deleted_after_the_reader(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    known = [CheckpointName(1, 1), CheckpointName(2, 1)]
    config = CheckpointConfig(keep=1)
    read = tmp_path / str(known[0])
    with kept(read):
        assert retention.delete_others(tmp_path, known, config, unrated, lambda: None) == known
        assert (read / MODEL).exists()
    left_of = retention.delete_others(tmp_path, known, config, unrated, lambda: None)
    assert left_of == known[1:]
    assert names_in(tmp_path) == known[1:]


def test_killed_reader_keeps_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "step-00000001.attempt-1"
    script = (
        "import sys, time, pathlib\nfrom ddp_trainer.checkpoint.reading import kept\n"
        "with kept(pathlib.Path(sys.argv[1])):\n print('read', flush=True)\n time.sleep(600)"
    )
    reader = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"read\n"
    with claimed(path) as free:
        assert not free
    reader.kill()
    reader.wait()
    with claimed(path) as free:
        assert free


def test_reader_of_a_checkpoint_without_a_lock_is_not_stopped(tmp_path: Path) -> None:
    with kept(tmp_path / "missing"):
        pass
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with kept(tmp_path / "weights.safetensors"):
        pass
    os.mkfifo(tmp_path / "MANIFEST.json")
    with kept(tmp_path):
        pass
