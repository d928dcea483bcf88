"""Tests of the command `train`: errors for wrong input, events and heartbeats."""

import json
from pathlib import Path

import pytest

from ddp_wire.messages import Heartbeat, LocalHeartbeat
from tests.trainer.rank_processes import Launcher

TASK = "--task=sample_tasks:build"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "train: set --task package.module:function or the variable DDP_TASK"),
        ([TASK, "--epoch=3"], 'config: unknown key "epoch"; did you mean "epochs"?'),
        (
            [TASK, "--task.sample=3"],
            'config: unknown key "task.sample"; did you mean "task.samples"?',
        ),
        ([TASK, "--task.samples=x"], 'config: task.samples must be a valid integer, not "x"'),
        (
            [TASK, "--global_batch=1"],
            "config: global_batch 1 is less than the number of ranks, 2; each rank needs a sample",
        ),
        (
            ["--task=sample_tasks"],
            'task: "sample_tasks" must have the form package.module:function',
        ),
        (["--task=nowhere.at:all"], 'task: there is no module "nowhere"'),
        (["--task=sample_tasks:none"], 'task: module "sample_tasks" has no function "none"'),
        (
            ["--task=sample_tasks:untyped"],
            'task: "sample_tasks:untyped" must annotate its first parameter with a pydantic model',
        ),
        (
            ["--task=sample_tasks:not_a_task"],
            'task: "sample_tasks:not_a_task" returned a value of type object without "model"',
        ),
        (
            ["--task=sample_tasks:build_own", "--optimizer.lr=1"],
            "config: optimizer.lr must not be set, because the task has its own optimizer",
        ),
        ([TASK, "--task.samples=0"], 'task: "train_data" of "sample_tasks:build" holds no samples'),
        (
            [TASK, "--task.bad_loss=true"],
            "task: loss must return Weighted(sum, count) with a scalar sum",
        ),
    ],
)
def test_wrong_input_is_reported_in_one_line(
    launcher: Launcher, arguments: list[str], sentence: str
) -> None:
    # One process without a rendezvous, except where the mistake concerns their number.
    gang = launcher.train(*arguments, world=2 if "ranks" in sentence else None)
    assert gang.wait()[0] == 2
    assert gang.err(0) == sentence + "\n"
    error = json.loads((gang.folder / "0.error.json").read_text())
    assert error["message"]["message"] == f"InputError: {sentence}"


@pytest.mark.slow
def test_only_rank_0_reports_wrong_input(launcher: Launcher) -> None:
    gang = launcher.train(TASK, "--task.samples=x", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0).count("\n") == 1
    assert gang.err(1) == gang.out(0) == gang.out(1) == ""
    assert (gang.folder / "1.error.json").exists()


@pytest.mark.slow
def test_every_rank_exits_if_rank_0_cannot_use_the_volume(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    gang = launcher.train(TASK, world=2, DDP_CHECKPOINT_DIR=str(tmp_path / "file" / "run"))
    assert gang.wait() == [2, 2]
    assert gang.err(0).startswith("checkpoint: cannot use")
    assert gang.err(1) == ""


def test_arguments_override_the_settings_of_the_environment(
    launcher: Launcher, tmp_path: Path
) -> None:
    environ = {
        "DDP_TASK": "sample_tasks:build",
        "DDP_CONFIG": '{"global_batch": 10, "epochs": 4, "task": {"samples": 20}}',
        "DDP_CHECKPOINT_DIR": str(tmp_path / "ck"),
        "DDP_CHECKPOINT_EVERY_STEPS": "3",
        "DDP_CHECKPOINT_KEEP": "2",
        "DDP_BEATS_DIR": str(tmp_path / "beats"),
        "DDP_ATTEMPT": "7",
    }
    gang = launcher.train("--epochs=5", world=2, **environ)
    assert gang.wait() == [0, 0]
    assert gang.out(1) == ""
    kinds = [event["event"] for event in gang.events()]
    assert kinds[0] == "start"
    assert kinds[-1] == "summary"
    assert all({"time", "rank", "attempt"} <= event.keys() for event in gang.events())
    assert [event["step"] for event in gang.events("checkpoint")] == [3, 6, 9, 10]
    assert [event["step"] for event in gang.events("eval")] == [2, 4, 6, 8, 10]
    (progress,) = gang.events("progress")
    assert progress["step"] == progress["total_steps"] == 10
    assert progress["epoch"] == 5
    assert {"loss", "lr", "samples_per_second", "eta_seconds"} <= progress.keys()
    for name in ("step_seconds", "own_seconds"):
        assert len(progress[name]) == 2, "one value per rank"
        assert min(progress[name]) > 0.0
    names = sorted(path.name for path in (tmp_path / "ck").iterdir())
    steps = ["step-00000009.attempt-7", "step-00000010.attempt-7"]
    assert names == ["FENCE.json", "config.json", "history.jsonl", *steps]
    history = (tmp_path / "ck" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in history] == gang.events()
    resolved = json.loads((tmp_path / "ck" / "config.json").read_text())
    assert resolved["config"]["epochs"] == 5
    assert resolved["config"]["task"]["eval_samples"] == 11

    first, second = (
        LocalHeartbeat.model_validate_json((tmp_path / "beats" / f"{rank}.json").read_text())
        for rank in (0, 1)
    )
    assert (first.phase, first.step, first.attempt, first.rank) == ("Done", 10, 7, 0)
    assert first.progress
    assert first.progress.step == first.progress.total_steps == 10
    assert first.progress.metrics == pytest.approx(gang.events("summary")[0]["metrics"], rel=1e-4)
    assert first.checkpoint
    assert first.checkpoint.step == 10
    for times in (first.times, second.times):
        assert times
        assert sum(times.updates) == 9, "the first update starts the measurement"
        assert times.update_seconds > 0.0
        assert times.checkpoint_seconds > 0.0
    assert second.progress is None
    assert second.checkpoint is None
    assert first.resumed_from is None


def test_every_rank_prints_its_own_progress_with_all_ranks(launcher: Launcher) -> None:
    often = ["--max_steps=4", "--log.every_steps=2", "--log.all_ranks=true"]
    gang = launcher.train(TASK, *often, world=2)
    assert gang.wait() == [0, 0]
    lines = [json.loads(line) for line in gang.out(1).splitlines()]
    assert [(x["event"], x["rank"], x["step"]) for x in lines] == [
        ("progress", 1, 2),
        ("progress", 1, 4),
    ]
    assert [x["rank"] for x in gang.events("progress")] == [0, 0]


@pytest.mark.slow
def test_peak_tflops_needs_a_task_with_flops_per_sample(launcher: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    gang = launcher.train(TASK, "--log.peak_tflops=1", world=2, DDP_CHECKPOINT_DIR=str(run))
    assert gang.wait() == [2, 2]
    assert not run.exists()
    assert gang.err(0) == (
        "config: log.peak_tflops requires a task with flops_per_sample, a number greater than 0,"
        " not None\n"
    )


def test_resumed_attempt_reports_its_step_and_the_broken_checkpoint(
    launcher: Launcher, tmp_path: Path
) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path / "ck"), "DDP_BEATS_DIR": str(tmp_path / "beats")}
    arguments = [TASK, "--global_batch=10", "--task.samples=20"]
    assert launcher.train(*arguments, "--epochs=3", world=1, DDP_ATTEMPT="1", **environ).wait() == [
        0
    ]
    broken = tmp_path / "ck" / "step-00000006.attempt-1"
    (broken / "model.safetensors").write_bytes(b"")
    gang = launcher.train(*arguments, "--epochs=4", world=2, DDP_ATTEMPT="2", **environ)
    assert gang.wait() == [0, 0]
    (warning,) = gang.events("warning")
    assert warning["message"].startswith(f"checkpoint {broken} is damaged: model.safetensors")
    (resume,) = gang.events("resume")
    assert resume["message"] == "resumed at step 4 of 8"
    heartbeat = Heartbeat.model_validate_json((tmp_path / "beats" / "1.json").read_text())
    assert (heartbeat.resumed_from, heartbeat.step) == (4, 8)
