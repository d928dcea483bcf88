"""Tests of evaluation during a run."""

from pathlib import Path

import pytest
from torch import nn

from ddp_trainer.data.evaluation import evaluation_mode
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.tools.check.samples import check_data
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import opened


@pytest.mark.slow
@pytest.mark.parametrize("samples", [11, 2])
def test_metrics_do_not_depend_on_the_number_of_ranks(launcher: Launcher, samples: int) -> None:
    arguments = ["--task=sample_tasks:build_own", "--global_batch=6", "--max_steps=4"]
    arguments += [
        f"--task.eval_samples={samples}",
        "--task.batch_norm=false",
        "--data.eval_batch=2",
    ]
    gangs = [launcher.train(*arguments, world=world) for world in (1, 2, 3)]
    found = []
    for world, gang in enumerate(gangs, start=1):
        assert gang.wait() == [0] * world
        found.append(gang.events("summary")[0]["metrics"])
    assert found[0] == found[1] == found[2]
    assert (found[0]["accuracy"] * samples) % 1 == pytest.approx(0, abs=1e-4)


@pytest.mark.slow
def test_metrics_with_different_names_on_one_rank_raise_an_error(launcher: Launcher) -> None:
    arguments = ["--max_steps=1", "--global_batch=6", "--task.eval_samples=2"]
    gang = launcher.train("--task=sample_tasks:build_odd_metrics", *arguments, world=3)
    # Rank 2 has no samples of its own, only a placeholder.
    assert gang.wait() == [2, 2, 2]
    assert gang.err(0) == (
        'task: metrics must return the same names on every rank, but rank 2 returned "f1",'
        ' "recall" and rank 0 "f1", "precision"\n'
    )


def test_task_without_metrics_or_evaluation_data_runs(launcher: Launcher) -> None:
    arguments = ["--task=sample_tasks:build", "--max_steps=2"]
    with_data = launcher.train(*arguments, world=None)
    without = launcher.train(*arguments, "--task.eval_samples=0", world=None)
    assert with_data.wait() == without.wait() == [0]
    assert set(with_data.events("summary")[0]["metrics"]) == {"loss"}
    assert without.events("summary")[0]["metrics"] == {}
    assert without.events("eval") == []


def test_evaluation_event_has_the_difference_to_the_training_loss(launcher: Launcher) -> None:
    often = ["--max_steps=4", "--log.every_steps=2", "--eval_every_steps=1"]
    gang = launcher.train("--task=sample_tasks:build", *often, world=2)
    assert gang.wait() == [0, 0]
    first, *_, last = gang.events("eval")
    assert "loss_gap" not in first  # There is no training loss yet.
    newest = gang.events("progress")[-1]["loss"]
    assert last["train_loss"] == newest
    assert last["loss_gap"] == pytest.approx(last["metrics"]["loss"] - newest, abs=1e-4)


def test_batch_norm_evaluates_with_running_statistics_of_all_ranks(launcher: Launcher) -> None:
    arguments = ["--task=sample_tasks:build", "--task.batch_norm=true", "--max_steps=6"]
    gang = launcher.train(*arguments, "--global_batch=8", world=2)
    assert gang.wait() == [0, 0]
    assert gang.events("summary")[0]["metrics"]["loss"] > 0


@pytest.mark.slow
def test_number_of_worker_processes_does_not_change_the_weights(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ["--task=sample_tasks:build", "--max_steps=6", "--task.noise=0.1"]
    gangs = [
        launcher.train(
            *arguments, f"--data.workers={n}", f"--checkpoint.directory={tmp_path / str(n)}"
        )
        for n in (0, 1)
    ]
    for gang in gangs:
        assert gang.wait() == [0]
    files = [
        next((tmp_path / str(n)).glob("step-*")).joinpath("model.safetensors").read_bytes()
        for n in (0, 1)
    ]
    assert files[0] == files[1]


def test_empty_metrics_raise_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened("sample_tasks:build_odd_metrics", global_batch=10)
    monkeypatch.setattr(run.task, "metrics", lambda *_: {})
    evaluate_run(run)
    assert run.metrics == {}


def test_evaluation_leaves_each_module_in_its_own_mode() -> None:
    run = opened(global_batch=10, task={"batch_norm": True})
    model = run.learner.model
    model.get_submodule("norm").eval()
    before = {name: module.training for name, module in model.named_modules()}
    evaluate_run(run)
    check_data(run.task, "train_data", run.config, limit=5)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert before["norm"] is False
    assert before["inner"] is True


def test_evaluation_that_fails_leaves_each_module_in_its_own_mode() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()

    def evaluate_and_fail() -> None:
        with evaluation_mode(model):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        evaluate_and_fail()
    assert [module.training for module in model.modules()] == [True, True, False]
