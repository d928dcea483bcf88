"""Tests of a run whose checkpoints are written beside the training, also on a volume that fails."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint import background
from ddp_trainer.checkpoint import format as checkpoint_format
from ddp_trainer.checkpoint.format import names_in
from ddp_trainer.errors import InputError
from ddp_trainer.run.saving import save
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.run.test_resume import final_bytes
from tests.trainer.runs import trained


def start(launcher: Launcher, home: Path, *arguments: str, fault: str = "", world: int = 2) -> Gang:
    if fault:
        (home / "control").write_text(fault)
    settings = ["--task=sample_tasks:build", "--global_batch=10", "--epochs=1000"]
    settings += ["--task.eval_samples=0", "--task.forward_seconds=0.05", "--checkpoint.keep=100"]
    settings += [f"--checkpoint.directory={home / 'run'}", "--checkpoint.part_mb=0.0001"]
    given = [str(home / "control"), *settings, *arguments]
    gang = launcher.call("format_probes:train_beside_faulty_process", given, world=world)
    gang.wait_until((gang.folder / "0.out").exists)
    return gang


def saved(gang: Gang) -> list[int]:
    return [event["step"] for event in gang.events("checkpoint")]


def warnings(gang: Gang) -> list[str]:
    return [event["message"] for event in gang.events("warning")]


def committed(home: Path) -> list[int]:
    return [name.step for name in names_in(home / "run") if not name.suffix]


@pytest.mark.slow
def test_checkpoints_are_written_beside_the_training(launcher: Launcher, tmp_path: Path) -> None:
    gang = start(launcher, tmp_path, "--max_steps=8", "--checkpoint.every_steps=3")
    assert gang.wait() == [0, 0], gang.err(0)
    assert saved(gang) == [3, 6, 8]
    first, second, last = gang.events("checkpoint")
    assert first["background_seconds"] > 0 < second["background_seconds"]
    assert "background_seconds" not in last  # The run waits for it.
    assert committed(tmp_path) == [3, 6, 8]
    assert not list((tmp_path / "run").glob("*.tmp"))


@pytest.mark.slow
def test_training_goes_on_while_the_volume_fails_and_the_write_is_tried_again(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = start(launcher, tmp_path, "--checkpoint.every_steps=3", fault="EIO")
    gang.wait_until(lambda: any("left out" in text for text in warnings(gang)))
    assert saved(gang) == []
    (first, *_) = warnings(gang)
    assert first.startswith(f"step-00000003.attempt-0 is not written to {tmp_path / 'run'} yet:")
    assert "Input/output error; training continues, and the write is tried again" in first
    (tmp_path / "control").unlink()
    gang.wait_until(lambda: len(saved(gang)) >= 2)
    gang.signal(0, signal.SIGTERM)
    assert gang.wait() == [85, 85], gang.err(0)
    steps = saved(gang)
    assert steps[0] == 3  # The state that was handed over first, not a later one.
    assert steps == sorted(steps)
    assert committed(tmp_path) == steps
    assert sum("Input/output error" in text for text in warnings(gang)) == 1


@pytest.mark.slow
def test_required_checkpoint_replaces_one_that_a_stalled_volume_holds_up(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = start(launcher, tmp_path, "--checkpoint.every_steps=3", fault="stall")
    gang.wait_until(lambda: any("has not answered" in text for text in warnings(gang)))
    gang.wait_until(lambda: any("left out" in text for text in warnings(gang)))
    gang.signal(1, signal.SIGTERM)
    assert gang.wait() == [85, 85], gang.err(0)
    assert any("the checkpoint of step 3 is given up" in text for text in warnings(gang))
    (step,) = saved(gang)
    assert step == gang.events("stop")[0]["steps"]
    assert committed(tmp_path) == [step]


@pytest.mark.slow
def test_process_that_dies_is_replaced_and_its_checkpoint_is_written(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ("--max_steps=12", "--checkpoint.every_steps=6")
    gang = start(launcher, tmp_path, *arguments, fault="die")
    assert gang.wait() == [0, 0], gang.err(0)
    # A busy machine may add that the checkpoint is not written yet.
    (ended,) = [text for text in warnings(gang) if "ended with" in text]
    assert ended == (
        "the process that writes step-00000006.attempt-0 ended with exit code 9; a new one writes"
        " it"
    )
    assert saved(gang) == committed(tmp_path) == [6, 12]


@pytest.mark.slow
def test_required_checkpoint_replaces_one_whose_process_always_dies(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = start(launcher, tmp_path, "--checkpoint.every_steps=3", fault="die always")
    gang.wait_until(lambda: any("left out" in text for text in warnings(gang)))
    gang.signal(1, signal.SIGTERM)
    assert gang.wait() == [85, 85], gang.err(0)
    assert any("the checkpoint of step 3 is given up" in text for text in warnings(gang))
    assert sum("exit code 9" in text for text in warnings(gang)) == 2
    (step,) = saved(gang)
    assert step == gang.events("stop")[0]["steps"]
    assert committed(tmp_path) == [step]


def test_document_that_is_too_large_ends_the_run_before_the_process_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_format, "LARGEST_DOCUMENT", 100)
    checkpoint = {"directory": str(tmp_path), "every_steps": 2, "background": True}
    with pytest.raises(InputError, match="the state that is not tensors has"):
        trained(global_batch=10, max_steps=6, checkpoint=checkpoint)


def saves_of(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Train a small run on one rank, and return the events of its saves."""
    checkpoint = {"directory": str(directory), "every_steps": 2}
    run = trained(global_batch=10, max_steps=6, checkpoint=checkpoint, task={"dropout": 0.2})
    save(run, required=True)
    lines = capsys.readouterr().out.splitlines()
    about = (event for event in map(json.loads, lines) if event["event"] in {"checkpoint", "note"})
    return [event for event in about if "further" in event.get("message", "further")]


@pytest.mark.slow
def test_small_checkpoint_is_written_beside_the_training_after_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "SLOW_SECONDS", math.inf)
    quick = saves_of(tmp_path / "quick", capsys)
    assert [event["step"] for event in quick] == [2, 4, 6]
    assert not any("background_seconds" in event for event in quick)
    monkeypatch.setattr(background, "SLOW_SECONDS", 0.0)
    first, note, second, last = saves_of(tmp_path / "slow", capsys)
    assert [event["step"] for event in (first, second, last)] == [2, 4, 6]
    assert ["background_seconds" in event for event in (first, second, last)] == [0, 1, 0]
    assert note["message"].startswith("further checkpoints are written in the background, because")
    assert final_bytes(tmp_path / "quick") == final_bytes(tmp_path / "slow")
    for file in (tmp_path / "quick" / "step-00000004.attempt-0").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "slow" / file.parent.name / file.name).read_bytes()
