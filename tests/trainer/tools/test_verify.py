"""Tests of the command `verify`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.commands import verify as commands
from ddp_trainer.errors import InputError
from ddp_trainer.tools.verify.comparison import largest_difference
from tests.trainer.rank_processes import Launcher


def verify(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The folder of the tasks, and that from which they import `tests`.
    own = [str(Path(__file__).parents[number]) for number in (1, 3)]
    paths = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-m", "ddp_trainer", "verify", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
    )


@pytest.mark.slow
def test_verify_finds_equal_weights_in_all_cases(tmp_path: Path) -> None:
    task = ["--task.dropout=0.5", "--task.uneven=true", "--task.unused=true"]
    unused = "--parallel.find_unused_parameters=true"
    done = verify(tmp_path, "sample_tasks:build", *task, unused)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "20 updates of 32 samples, tolerance 1e-06"
    rows = [line.split() for line in lines[2:]]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("1", "-", "4"),
        *((world, *case) for world in "24" for case in CASES),
    ]
    assert all(row[4] == "ok" for row in rows)
    assert list(tmp_path.iterdir()) == []


TWO = ("--ranks=2", "--strategies=ddp")
"""Options for two ranks, enough for a mistake that depends on no number of ranks or strategy."""
CASES = [("ddp", "1"), ("ddp", "4"), ("zero1", "1"), ("fsdp2", "1")]


def test_invalid_strategies_are_refused_in_one_sentence() -> None:
    sentence = 'from ddp, zero1, fsdp2, separated by commas, not "ddp,fsdp"'
    with pytest.raises(InputError, match=sentence):
        commands._strategies("ddp,fsdp")
    assert commands._strategies("fsdp2,ddp") == ("ddp", "fsdp2")


# Remainders of 1 and 4: more ranks than cores take seconds, and test_sampler has all sizes.
@pytest.mark.slow
def test_verify_finds_equal_weights_with_uneven_batches(tmp_path: Path) -> None:
    options = ["--ranks=3,6", "--steps=3", "--global_batch=16"]
    done = verify(tmp_path, "sample_tasks:build", *options, "--task.uneven=true")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", *(world for world in "36" for _ in CASES)]
    assert all(float(row[3]) <= 1e-6 and row[4] == "ok" for row in rows)


@pytest.mark.slow
def test_verify_lists_a_strategy_that_cannot_train_the_task(tmp_path: Path) -> None:
    task = ["model_mistakes:build", "--task.name=number_as_a_weight", "--steps=2", "--ranks=2"]
    done = verify(tmp_path, *task)
    assert done.returncode == 0, done.stderr
    results = {line.split()[1]: line for line in done.stdout.splitlines()[2:]}
    assert results["ddp"].endswith("ok")
    assert results["zero1"].endswith("ok")
    sentence = "task: fsdp2 cannot split the parameter"
    assert f"refused: {sentence}" in results["fsdp2"]
    done = verify(tmp_path, *task, "--strategies=zero1,fsdp2")
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert [line.split()[1] for line in done.stdout.splitlines()[2:]] == ["-", "zero1", "fsdp2"]


@pytest.mark.slow
def test_verify_detects_a_task_whose_ranks_differ(tmp_path: Path) -> None:
    done = verify(tmp_path, "sample_tasks:build", *TWO, "--steps=3", "--task.noise=0.5")
    assert done.returncode == 1
    assert "TOO LARGE" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("train_data[0] depends on the seed, and each")
    assert "Traceback" not in done.stderr


def test_verify_refuses_augmentation_without_a_seed(launcher: Launcher) -> None:
    task = ["mistakes:build", "--task.name=augmentation_without_a_seed"]
    gang = launcher.call("rank_processes:run_command", ["verify", *task, *TWO], world=None)
    assert gang.wait() == [2]
    assert gang.err(0) == (
        "verify: train_data[0] is not the same when it is read twice with the same seeds, so a"
        " resumed run gets other data: draw from the global generators of random, numpy or torch,"
        " which the trainer seeds for each sample, and do not change the data set\n"
    )


@pytest.mark.slow
def test_verify_uses_the_optimizer_of_the_task(tmp_path: Path) -> None:
    compiled = ["--compile=true", "--compile_dynamic=true", "--compile_mode=default"]
    done = verify(tmp_path, "sample_tasks:build_own", "--ranks=2", "--steps=3", *compiled)
    assert done.returncode == 0, done.stderr
    done = verify(tmp_path, "sample_tasks:build_own", "--optimizer.lr=0.1")
    assert done.returncode == 2
    assert (
        done.stderr
        == "config: optimizer.lr must not be set, because the task has its own optimizer\n"
    )


@pytest.mark.slow
def test_verify_reports_a_mistake_in_one_sentence(tmp_path: Path) -> None:
    done = verify(tmp_path, "sample_tasks:build", "--global_batch=3")
    assert done.returncode == 2
    assert done.stderr == (
        "config: global_batch 3 is less than the number of ranks, 4; each rank needs a sample\n"
    )
    done = verify(tmp_path, "sample_tasks:none")
    assert done.returncode == 2
    assert done.stderr.endswith('task: module "sample_tasks" has no function "none"\n')


@pytest.mark.slow
def test_verify_states_how_buffers_are_treated(tmp_path: Path) -> None:
    done = verify(tmp_path, "buffer_tasks:build", *TWO, "--steps=2", "--task.kind=queue")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        'training changes 2 buffers, first "first.queue.items": after each update all ranks take'
        " those of rank 0 (parallel.buffers is broadcast); on 2 ranks after 5 updates they are"
        " equal  ok"
    )


@pytest.mark.parametrize(
    ("task", "policy", "end", "valid"),
    [
        ({"kind": "none"}, "broadcast", None, True),
        ({}, "average", "(parallel.buffers is average); on 2 ranks after 3 updates", True),
        ({}, "per_rank", "of their numbers differ  ok", True),
        ({"stray": True}, "broadcast", "6 of their numbers differ  NOT EQUAL", False),
    ],
)
def test_verify_compares_the_buffers_of_two_ranks(
    launcher: Launcher, task: dict[str, Any], policy: str, end: str | None, valid: bool
) -> None:
    settings = {"max_steps": 3, "task": task, "parallel": {"buffers": policy}}
    gang = launcher.call("probes:report_buffers", settings, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (found,) = [event["found"] for event in gang.events("probe")]
    if end is None:
        assert found is None
        return
    assert end in found["sentence"]
    assert found["valid"] == valid


def test_weight_difference_is_infinite_for_nan_or_a_missing_tensor() -> None:
    one = {"a": torch.tensor([1.0, 2.0])}
    assert largest_difference(one, {"a": torch.tensor([1.0, 2.5])}) == 0.5
    assert largest_difference(one, {"a": torch.tensor([1.0, float("nan")])}) == float("inf")
    assert largest_difference(one, {}) == float("inf")
