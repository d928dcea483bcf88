"""Tests of resuming: a killed and restarted run ends like an uninterrupted one."""

import importlib
import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddp_trainer.checkpoint.snapshot import Checkpoint
from ddp_trainer.errors import InputError
from ddp_trainer.run.saving import save, state_of
from ddp_trainer.run.state import gather, restore
from ddp_trainer.saved_state import SavedConfig, SavedOptimizer
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import opened, trained

TASK = "--task=sample_tasks:build"
NOISY = {"samples": 37, "dropout": 0.3, "noise": 0.1}
BASE = {"epochs": 3, "global_batch": 6, "checkpoint": {"every_steps": 5}, "task": NOISY}


def final_bytes(folder: Path) -> dict[str, bytes]:
    newest = max(folder.glob("step-*"))
    return {n: (newest / n).read_bytes() for n in ("model.safetensors", "optimizer.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
def test_killed_run_ends_with_the_bits_of_an_uninterrupted_one(
    launcher: Launcher, tmp_path: Path, world: int
) -> None:
    config = f"--config={json.dumps(BASE)}"
    whole = launcher.train(TASK, config, world=world, DDP_CHECKPOINT_DIR=str(tmp_path / "a"))
    broken = {"DDP_CHECKPOINT_DIR": str(tmp_path / "b")}
    for after in (7, 6):
        die = [f"--task.die_after={after}", f"--task.die_rank={world - 1}"]
        gang = launcher.train(TASK, config, *die, world=world, **broken)
        assert gang.wait()[world - 1] == -9
    last = launcher.train(TASK, config, world=world, **broken)
    assert last.wait() == [0] * world
    assert whole.wait() == [0] * world
    assert [event["step"] for event in last.events("resume")] == [10]
    assert final_bytes(tmp_path / "a") == final_bytes(tmp_path / "b")
    facts = ("steps", "samples", "metrics")
    ends = [gang.events("summary")[0] for gang in (whole, last)]
    assert [ends[0][key] for key in facts] == [ends[1][key] for key in facts]


def test_run_resumed_on_a_reporting_step_reports_a_finite_loss(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = [TASK, "--global_batch=6", "--log.every_steps=5", "--schedule.name=constant"]
    arguments += [f"--checkpoint.directory={tmp_path}", "--schedule.warmup_steps=0"]
    for most in (5, 10):
        run = launcher.train(*arguments, f"--max_steps={most}")
        assert run.wait() == [0]
        reports = [(event["step"], event["loss"]) for event in run.events("progress")]
        assert [step for step, _ in reports] == [most]
        assert all(loss is not None for _, loss in reports)


@pytest.mark.slow
def test_run_resumes_with_another_world_size(launcher: Launcher, tmp_path: Path) -> None:
    arguments = [TASK, "--global_batch=6", "--epochs=2", "--task.samples=34"]
    arguments += ["--optimizer.name=sgd", "--schedule.name=constant", "--schedule.warmup_steps=0"]
    notes = {}
    for name, world, extra in (("two", 2, ["--max_steps=8"]), ("three", 3, [])):
        folder = tmp_path / name
        folder.mkdir()
        extra += [f"--task.log_dir={folder}", f"--checkpoint.directory={tmp_path / 'ck'}"]
        assert launcher.train(*arguments, *extra, world=world).wait() == [0] * world
        notes[name] = [path.read_text().splitlines() for path in folder.iterdir()]
    whole = launcher.train(*arguments, f"--checkpoint.directory={tmp_path / 'alone'}")
    assert whole.wait() == [0]
    # With three ranks an attempt starts with a rehearsal of its first pass.
    passes = [line for lines in notes["two"] for line in lines]
    passes += [line for lines in notes["three"] for line in lines[1:]]
    assert Counter(map(int, " ".join(passes).split())) == Counter(2 * list(range(34)))
    ours, theirs = (
        load_file(max((tmp_path / name).glob("step-*")) / "model.safetensors")
        for name in ("ck", "alone")
    )
    assert all(ours[key].allclose(theirs[key], atol=1e-6, rtol=0) for key in theirs)


def test_complete_run_reports_the_same_result_again(launcher: Launcher, tmp_path: Path) -> None:
    arguments = [TASK, "--epochs=1", "--global_batch=10"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path / "ck")}
    gangs = []
    for attempt in ("1", "2"):
        gangs.append(launcher.train(*arguments, world=None, DDP_ATTEMPT=attempt, **folder))
        assert gangs[-1].wait() == [0]
    message = gangs[1].events("complete")[0]["message"]
    assert message == "resumed at step 5 of 5: nothing left to train"
    summaries = [gang.events("summary")[0] for gang in gangs]
    for key in ("steps", "samples", "metrics", "checkpoint"):
        assert summaries[0][key] == summaries[1][key]
    assert summaries[1]["checkpoint"].endswith("step-00000005.attempt-1")
    assert summaries[0]["seconds"] == pytest.approx(summaries[1]["seconds"], rel=1e-3, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("--seed=1", "seed must stay 0"),
        ("--optimizer.name=sgd", "written with the optimizer AdamW, now it is SGD;"),
        ("--task.samples=60", "written with 50 training samples, now there are 60"),
        ("--task.batch_norm=true", '"norm.bias" is not in the checkpoint'),
    ],
)
def test_change_that_invalidates_the_checkpoint_is_an_error(
    launcher: Launcher, tmp_path: Path, change: str, sentence: str
) -> None:
    arguments = [TASK, "--global_batch=10"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path / "ck")}
    assert launcher.train(*arguments, world=None, **folder).wait() == [0]
    gang = launcher.train(*arguments, "--epochs=2", change, world=None, **folder)
    assert gang.wait() == [2]
    assert sentence in gang.err(0)
    assert len(gang.err(0).splitlines()) == 1


@pytest.mark.slow
def test_task_that_changes_its_optimizer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"optimizer": {}, "checkpoint": {"directory": str(tmp_path)}}
    save(trained("sample_tasks:build_own", max_steps=1, **settings))
    task = importlib.import_module("sample_tasks").OwnTask
    monkeypatch.setattr(task, "optimizer", lambda _, params: torch.optim.Adagrad(params))
    with pytest.raises(InputError, match="with the optimizer SGD, now it is Adagrad"):
        opened("sample_tasks:build_own", **settings)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimizer_of_an_older_releases_checkpoint_is_read_from_its_config(name: str) -> None:
    run = opened()  # It uses sgd.
    taken = gather(run.learner, run.task)
    assert taken
    config = SavedConfig(seed=0, optimizer=SavedOptimizer(name=name))
    state = state_of(run).model_copy(update={"optimizer": None, "config": config})
    saved = Checkpoint(state, taken)
    refused = pytest.raises(InputError, match="with the optimizer adamw, now it is SGD")
    with refused if name == "adamw" else nullcontext():
        restore(run.learner, run.task, saved)
