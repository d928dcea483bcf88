"""The command that compares what a task learns at other numbers of ranks and batches."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.tools.converge import Limits, Outcome, Way, by_quarter, judge, settings_of, table

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


def test_each_way_sees_as_many_samples_with_a_warm_up_as_long() -> None:
    config = resolve({"max_steps": 40, "global_batch": 16, "schedule": {"warmup_steps": 8}})
    document = settings_of(config, Way(2, 64), 16, None)
    assert document["max_steps"] == 10
    assert document["global_batch"] == 64
    assert document["schedule"] == {"warmup_steps": 2, "base_batch": 16, "scaling": "sqrt"}
    sgd = resolve({"epochs": 3, "optimizer": {"name": "sgd"}})
    assert settings_of(sgd, Way(1, 32), 16, 50)["schedule"]["scaling"] == "linear"
    assert settings_of(sgd, Way(1, 32), 16, 50)["epochs"] == 3


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
def test_small_batches_at_the_end_of_epochs_are_counted(
    batch: int, size: int | None, updates: int
) -> None:
    config = resolve({"max_steps": 40})
    assert settings_of(config, Way(1, batch), 10, size)["max_steps"] == updates


def test_a_rule_that_the_user_states_stays() -> None:
    stated = {"base_batch": 8, "scaling": "linear"}
    assert settings_of(resolve({"schedule": stated}), Way(1, 64), 16, None)["schedule"] == stated


def test_what_cannot_be_shared_out_is_one_sentence() -> None:
    sentence = "config: global_batch 16 must be a multiple of the world size 3"
    with pytest.raises(InputError, match=sentence):
        settings_of(resolve({}), Way(3, 16), 16, None)


def test_losses_are_told_by_quarter() -> None:
    lines = [{"step": step, "loss": float(step)} for step in (1, 5, 10, 11, 15, 40)]
    assert by_quarter(lines, 40) == [16 / 3, 13.0, None, 40.0]
    assert by_quarter([], 40) == [None] * 4
    (broken, *_) = by_quarter([{"step": 1, "loss": None}], 40)
    assert math.isnan(broken or 0.0)


def test_ranks_are_judged_by_the_fewest_and_batches_by_the_first() -> None:
    found = {
        Way(1, 32): outcome(1.0),
        Way(2, 32): outcome(1.04),
        Way(4, 32): outcome(0.9),
        Way(1, 128): outcome(1.2),
        Way(2, 128): outcome(1.2),
    }
    rows = judge(found, LIMITS)
    assert [row.fault for row in rows] == ["", "", "more than 5.0% from 1 rank(s)", "", ""]
    assert [row.beside_ranks for row in rows] == pytest.approx([None, 0.04, -0.1, None, 0.0])
    assert [row.beside_batch for row in rows] == pytest.approx([None, None, None, 0.2, None])
    rows = judge(found, Limits(within=0.2, worse=0.1))
    assert [row.fault for row in rows] == ["", "", "", "more than 10.0% above batch 32", ""]


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (outcome(1.0, failure="training: not finite"), "training: not finite"),
        (outcome(math.nan), "the loss is not finite"),
        (outcome(0.0, metrics={}, losses=[None] * 4), "the loss is not finite"),
    ],
)
def test_a_training_that_failed_is_a_fault(broken: Outcome, fault: str) -> None:
    for first, second in ((outcome(1.0), broken), (broken, broken)):
        rows = judge({Way(1, 32): first, Way(2, 32): second}, LIMITS)
        assert rows[1].fault == fault


def test_without_an_evaluation_the_last_quarter_counts() -> None:
    assert outcome(0.0, metrics={}).loss == 1.5
    assert outcome(0.0, metrics={}, losses=[1.2, None, 1.1, None]).loss == 1.1


def test_the_table_tells_all_of_it() -> None:
    rows = judge({Way(1, 32): outcome(1.0), Way(2, 32): outcome(1.02)}, LIMITS)
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
def test_one_and_two_ranks_learn_alike(tmp_path: Path) -> None:
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
def test_a_batch_that_learns_worse_or_not_at_all_fails(tmp_path: Path) -> None:
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
        (["--ranks=0"], 'converge: --ranks must be numbers from 1 up with commas, not "0"\n'),
        (["--batches=a"], 'converge: --batches must be numbers from 1 up with commas, not "a"\n'),
        (
            ["--task.dropuot=1"],
            'config: unknown key "task.dropuot"; did you mean "task.dropout"?\n',
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = converge(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines(keepends=True)[-1] == sentence
    assert "Traceback" not in done.stderr
