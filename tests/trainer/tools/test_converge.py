"""Tests of the command `converge`."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.tools.converge import (
    Combination,
    Limits,
    Outcome,
    compare,
    losses_by_quarter,
    settings_for,
    table,
)

LIMITS = Limits(within=0.05, worse=None)


def outcome(loss: float, **other: Any) -> Outcome:
    plain: dict[str, Any] = {
        "updates": 10,
        "samples": 320,
        "lr": 0.1,
        "losses": [4.0, 3.0, 2.0, 1.5],
        "metrics": {"loss": loss},
        "seconds": 1.0,
    }
    return Outcome(**plain | other)


def test_settings_of_each_combination_keep_the_number_of_samples_and_the_warm_up() -> None:
    config = resolve({"max_steps": 40, "global_batch": 16, "schedule": {"warmup_steps": 8}})
    document = settings_for(config, Combination(2, 64), 16, None)
    assert document["max_steps"] == 10
    assert document["global_batch"] == 64
    assert document["schedule"] == {"warmup_steps": 2, "base_batch": 16, "scaling": "sqrt"}
    sgd = resolve({"epochs": 3, "optimizer": {"name": "sgd"}})
    assert settings_for(sgd, Combination(1, 32), 16, 50)["schedule"]["scaling"] == "linear"
    assert settings_for(sgd, Combination(1, 32), 16, 50)["epochs"] == 3


@pytest.mark.parametrize(
    ("batch", "size", "updates"),
    [
        (20, None, 20),
        (30, None, 14),
        (20, 50, 24),  # three in each of eight epochs
        (10, 50, 40),
        (64, 50, 8),
        (20, 1000, 20),
        (30, 1000, 14),
    ],
)
def test_settings_account_for_small_batches_at_the_end_of_epochs(
    batch: int, size: int | None, updates: int
) -> None:
    config = resolve({"max_steps": 40})
    assert settings_for(config, Combination(1, batch), 10, size)["max_steps"] == updates


def test_settings_keep_the_scaling_rule_of_the_user() -> None:
    stated = {"base_batch": 8, "scaling": "linear"}
    assert (
        settings_for(resolve({"schedule": stated}), Combination(1, 64), 16, None)["schedule"]
        == stated
    )


def test_settings_reject_a_batch_with_fewer_samples_than_ranks() -> None:
    with pytest.raises(InputError, match="global_batch 2 is less than the number of ranks, 3"):
        settings_for(resolve({}), Combination(3, 2), 16, None)


def test_losses_are_averaged_by_quarter() -> None:
    lines = [{"step": step, "loss": float(step)} for step in (1, 5, 10, 11, 15, 40)]
    assert losses_by_quarter(lines, 40) == [16 / 3, 13.0, None, 40.0]
    assert losses_by_quarter([], 40) == [None] * 4
    (first, *_) = losses_by_quarter([{"step": 1, "loss": None}], 40)
    assert math.isnan(first or 0.0)


def test_each_result_is_compared_with_the_fewest_ranks_and_the_first_batch() -> None:
    outcomes = {
        Combination(1, 32): outcome(1.0),
        Combination(2, 32): outcome(1.04),
        Combination(4, 32): outcome(0.9),
        Combination(1, 128): outcome(1.2),
        Combination(2, 128): outcome(1.2),
    }
    rows = compare(outcomes, LIMITS)
    assert [row.problem for row in rows] == ["", "", "more than 5.0% from 1 rank(s)", "", ""]
    assert [row.rank_difference for row in rows] == pytest.approx([None, 0.04, -0.1, None, 0.0])
    assert [row.batch_difference for row in rows] == pytest.approx([None, None, None, 0.2, None])
    rows = compare(outcomes, Limits(within=0.2, worse=0.1))
    assert [row.problem for row in rows] == ["", "", "", "more than 10.0% above batch 32", ""]


@pytest.mark.parametrize(
    ("failed", "problem"),
    [
        (outcome(1.0, failure="training: not finite"), "training: not finite"),
        (outcome(math.nan), "the loss is not finite"),
        (outcome(0.0, metrics={}, losses=[None] * 4), "the loss is not finite"),
    ],
)
def test_comparison_reports_a_failed_training(failed: Outcome, problem: str) -> None:
    for first, second in ((outcome(1.0), failed), (failed, failed)):
        rows = compare({Combination(1, 32): first, Combination(2, 32): second}, LIMITS)
        assert rows[1].problem == problem


def test_loss_without_an_evaluation_is_the_loss_of_the_last_quarter() -> None:
    assert outcome(0.0, metrics={}).loss == 1.5
    assert outcome(0.0, metrics={}, losses=[1.2, None, 1.1, None]).loss == 1.1


def test_converge_table_contains_all_columns() -> None:
    rows = compare({Combination(1, 32): outcome(1.0), Combination(2, 32): outcome(1.02)}, LIMITS)
    assert table(rows).splitlines()[-1] == (
        "| 2 | 32 | 320 | 10 | 0.1 | 4 3 2 1.5 | 1.02 | +2.0% | - | 1 | ok |"
    )


def converge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "ddp_trainer", "converge", "sample_tasks:build", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
    )


@pytest.mark.slow
def test_one_and_two_ranks_reach_similar_losses(tmp_path: Path) -> None:
    settings = ["--max_steps=40", "--global_batch=10", "--log.every_steps=1", "--batches=10,20"]
    done = converge(tmp_path, *settings, "--within=0.001")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[:5] for row in rows] == [
        ["1", "10", "400", "40", "0.003"],
        ["2", "10", "400", "40", "0.003"],
        ["1", "20", "400", "24", "0.00424"],
        ["2", "20", "400", "24", "0.00424"],
    ]
    assert all(len(row[5].split()) == 4 and row[-1] == "ok" for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_converge_fails_if_a_batch_learns_worse_or_not_at_all(tmp_path: Path) -> None:
    settings = ["--max_steps=8", "--global_batch=10", "--batches=10,40", "--ranks=1"]
    done = converge(tmp_path, *settings, "--worse=-0.99")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith("| more than -99.0% above batch 10 |")
    done = converge(tmp_path, *settings, "--task.nan_sample=3", "--nonfinite.policy=stop")
    assert done.returncode == 1
    assert "not finite" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--ranks=0"],
            'converge: --ranks must be integers above 0, separated by commas, not "0"\n',
        ),
        (
            ["--batches=a"],
            'converge: --batches must be integers above 0, separated by commas, not "a"\n',
        ),
        (
            ["--task.dropuot=1"],
            'config: unknown key "task.dropuot"; did you mean "task.dropout"?\n',
        ),
    ],
)
def test_converge_reports_a_mistake_in_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = converge(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines(keepends=True)[-1] == sentence
    assert "Traceback" not in done.stderr
