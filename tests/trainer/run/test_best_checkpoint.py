"""Tests of a run that keeps its best checkpoint by a metric of the evaluation."""

import json
from pathlib import Path

import pytest

from ddp_trainer.checkpoint.format import names_in, read_json
from ddp_trainer.errors import InputError
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.runs import opened

SETTINGS = {"epochs": 8, "global_batch": 10, "checkpoint": {
    "every_steps": 1000, "keep": 1, "keep_best": "loss"}}  # fmt: skip


def losses(gang: Gang) -> dict[int, float]:
    return {event["step"]: event["metrics"]["loss"] for event in gang.events("eval")}


@pytest.mark.slow
def test_best_checkpoint_is_saved_and_kept_over_two_attempts(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = SETTINGS | {"optimizer": {"lr": 0.3}, "task": {"noise": 0.5}}
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    first = launcher.train(*arguments, "--epochs=4", world=2, **folder)
    assert first.wait() == [0, 0], first.err(0)
    last = launcher.train(*arguments, world=2, **folder)
    assert last.wait() == [0, 0], last.err(0)
    found = losses(first) | losses(last)
    best = min(found, key=found.__getitem__)
    assert {name.step for name in names_in(tmp_path)} == {best, max(found)}
    state = read_json(next(tmp_path.glob(f"step-*{best}.attempt-*")) / "state.json")
    assert state["metrics"]["loss"] == pytest.approx(found[best], rel=1e-5)


def test_unknown_metric_is_one_warning(launcher: Launcher, tmp_path: Path) -> None:
    settings = SETTINGS | {"checkpoint": {"keep_best": "acuracy"}, "epochs": 3}
    gang = launcher.train(
        "--task=sample_tasks:build", f"--config={json.dumps(settings)}",
        world=None, DDP_CHECKPOINT_DIR=str(tmp_path),
    )  # fmt: skip
    assert gang.wait() == [0]
    (warning,) = [e["message"] for e in gang.events("warning") if "best" in e["message"]]
    assert 'has no metric "acuracy" (checkpoint.keep_best); its metrics are: ' in warning


def test_task_without_evaluation_data_is_refused(tmp_path: Path) -> None:
    checkpoint = {"directory": str(tmp_path), "keep_best": "loss"}
    with pytest.raises(InputError, match="keep_best requires evaluation data"):
        opened(task={"eval_samples": 0}, checkpoint=checkpoint)
