"""Tests of the checkpoint manager, and of writing, choosing and deleting checkpoints."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp_trainer.checkpoint import load, retention, snapshot, writer
from ddp_trainer.checkpoint.format import MANIFEST, CheckpointName, names_in
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.checkpoint.store.directory import PendingFolder
from ddp_trainer.config import CheckpointConfig
from ddp_trainer.errors import InputError
from ddp_trainer.saved_state import SavedState
from tests.trainer.checkpoint.opening import open_checked


def state(step: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(step)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def own_state(step: int) -> dict[str, Any]:
    """Return the fields of `state.json` that a run needs to resume."""
    return {
        "step": step,
        "samples": 4 * step,
        "seconds": 1.5,
        "data_size": 64,
        "world_size": 1,
        "scaler": {},
        "config": {"seed": 0},
    }


def whole(step: int, taken: snapshot.Snapshot | None = None) -> snapshot.Checkpoint:
    taken = taken or snapshot.take(*state(step))
    return snapshot.Checkpoint(SavedState.model_validate(own_state(step)), taken)


def saved(directory: Path, *steps: int, attempt: int = 1) -> None:
    for step in steps:
        writer.commit(directory, CheckpointName(step, attempt), whole(step), lambda: None)


def chosen(directory: Path) -> tuple[int | None, list[str]]:
    choice = load.choose(directory)
    return choice.name.step if choice.name else None, choice.skipped


def test_newest_complete_checkpoint_is_loaded(tmp_path: Path) -> None:
    assert chosen(tmp_path) == (None, [])
    saved(tmp_path, 9, 100, 20)
    assert chosen(tmp_path) == (100, [])


def test_checkpoint_restores_the_saved_state(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    got = load.receive(tmp_path / "step-00000003.attempt-1", torch.device("cpu")).snapshot
    model, optimizer = state(3)
    other, fresh = nn.Linear(4, 3), None
    fresh = torch.optim.AdamW(other.parameters(), lr=0.5)
    snapshot.put_model(other, got.model)
    snapshot.put_optimizer(other, fresh, got.optimizer, got.optimizer_rest, keep_groups=True)
    assert all(a.equal(b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    old, new = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert all(old[i][key].equal(new[i][key]) for i in old for key in old[i])
    assert fresh.param_groups[0]["lr"] == 0.5
    snapshot.put_optimizer(other, fresh, got.optimizer, got.optimizer_rest, keep_groups=False)
    assert fresh.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("model.safetensors", "cut", "model.safetensors has"),
        ("model.safetensors", "flip", "model.safetensors does not match its CRC32"),
        ("optimizer.safetensors", "flip", "optimizer.safetensors does not match"),
        ("state.json", "flip", "state.json does not match its CRC32"),
        ("state.json", "remove", "state.json is missing"),
        (MANIFEST, "remove", "MANIFEST.json is missing"),
        (MANIFEST, "cut", "MANIFEST.json is damaged"),
        (MANIFEST, "empty", "MANIFEST.json is damaged"),
    ],
)
def test_damaged_checkpoint_is_renamed_and_skipped(
    tmp_path: Path, file: str, damage: str, reason: str
) -> None:
    saved(tmp_path, 10, 20)
    path = tmp_path / "step-00000020.attempt-1" / file
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "empty":
        path.write_text("{}")
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    step, skipped = chosen(tmp_path)
    assert step == 10
    assert len(skipped) == 1
    assert skipped[0].startswith(f"checkpoint {path.parent} is damaged: {reason}")
    assert skipped[0].endswith(
        "; it was renamed to step-00000020.attempt-1.broken; trying the next older checkpoint"
    )
    assert (tmp_path / "step-00000020.attempt-1.broken").is_dir()
    saved(tmp_path, 20)
    assert chosen(tmp_path) == (20, [])


def test_any_flipped_bit_of_the_tensors_is_detected(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "step-00000001.attempt-1" / "model.safetensors"
    data = path.read_bytes()
    for offset in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="checkpoint: no checkpoint in"):
            chosen(tmp_path)
    path.write_bytes(data)
    assert chosen(tmp_path) == (1, [])


def test_writer_never_overwrites_and_leaves_nothing_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 5)
    before = (tmp_path / "step-00000005.attempt-1" / MANIFEST).read_bytes()
    with pytest.raises(FileExistsError):
        saved(tmp_path, 5)
    assert (tmp_path / "step-00000005.attempt-1" / MANIFEST).read_bytes() == before

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "manifest_of", full)
    with pytest.raises(OSError, match="No space"):
        saved(tmp_path, 6)
    assert [str(name) for name in names_in(tmp_path)] == ["step-00000005.attempt-1"]


def test_volume_failure_while_writing_a_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        PendingFolder(tmp_path / "gone").put("model.safetensors", [b"weights"])


def test_pending_checkpoint_is_never_loaded_and_the_next_attempt_deletes_it(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    for name in ("step-00000006.attempt-1.tmp", "step-00000007.attempt-3.tmp"):
        (tmp_path / name).mkdir()
    assert chosen(tmp_path) == (5, [])
    manager = CheckpointManager(CheckpointConfig(directory=str(tmp_path)))
    opened = open_checked(manager, 2, {"seed": 0})
    assert opened["attempt"] == 2
    assert opened["resume"]["step"] == 5
    names = [str(name) for name in names_in(tmp_path)]
    assert names == ["step-00000005.attempt-1", "step-00000007.attempt-3.tmp"]
    assert json.loads((tmp_path / "config.json").read_text()) == {"seed": 0}
    assert (
        CheckpointManager(CheckpointConfig(directory=str(tmp_path))).open(None, {})["attempt"] == 4
    )


def unrated(_: CheckpointName) -> float:
    return math.nan


def test_retention_keeps_the_newest_checkpoints_and_newer_damaged_ones(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    (tmp_path / "step-00000001.attempt-1").rename(tmp_path / "step-00000001.attempt-1.broken")
    (tmp_path / "step-00000004.attempt-1").rename(tmp_path / "step-00000004.attempt-1.broken")
    (tmp_path / "notes").mkdir()
    known = [CheckpointName(2, 1), CheckpointName(3, 1)]
    config = CheckpointConfig(keep=1)
    left_of = retention.delete_others(tmp_path, known, config, unrated, lambda: None)
    assert left_of == [CheckpointName(3, 1)]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-00000003.attempt-1", "step-00000004.attempt-1.broken", "notes"}


def test_unusable_checkpoint_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    manager = CheckpointManager(CheckpointConfig(directory=str(tmp_path / "file" / "run")))
    with pytest.raises(InputError, match="cannot use"):
        manager.open(1, {})


def test_checkpoints_are_due_at_the_configured_intervals(tmp_path: Path) -> None:
    def due(step: int, ended: bool, clock: bool = False, **settings: Any) -> bool:
        config = CheckpointConfig(directory=str(tmp_path), **settings)
        return CheckpointManager(config).due(step, epoch_ended=ended, by_clock=clock)

    assert due(7, ended=True)
    assert due(7, ended=False, clock=True)
    assert not due(7, ended=False)
    assert due(8, ended=False, every_steps=4)
    assert not due(7, ended=True, every_steps=4)
    assert not due(7, ended=True, every_seconds=4)
    assert due(7, ended=True, every_seconds=None)
    assert not CheckpointManager(CheckpointConfig()).due(4, epoch_ended=True, by_clock=True)


def parameter(model: nn.Module) -> torch.Tensor:
    return next(model.parameters())


def test_optimizer_state_that_is_neither_tensor_nor_json_is_an_error() -> None:
    model, optimizer = state(1)
    optimizer.state[parameter(model)]["odd"] = {"a": object()}
    with pytest.raises(InputError, match='state "odd" of the optimizer'):
        snapshot.take(model, optimizer)


def test_json_state_of_an_optimizer_is_restored() -> None:
    model, optimizer = state(1)
    optimizer.state[parameter(model)]["count"] = 7
    taken = snapshot.take(model, optimizer)
    json.dumps(taken.optimizer_rest)
    _, fresh = model, torch.optim.AdamW(model.parameters())
    snapshot.put_optimizer(model, fresh, taken.optimizer, taken.optimizer_rest, keep_groups=True)
    assert fresh.state[parameter(model)]["count"] == 7


def test_checkpoint_without_state_of_the_task_has_no_file_for_it(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    path = tmp_path / "step-00000003.attempt-1"
    assert not list(path.glob("task.*"))
    got = load.receive(path, torch.device("cpu")).snapshot
    assert (list(got.task), got.task_rest) == ([], None)
