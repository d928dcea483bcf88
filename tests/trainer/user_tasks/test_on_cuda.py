"""The tasks on CUDA: `check` accepts them, and a killed run ends with the same bits."""

from pathlib import Path

import pytest
import torch

from tests.trainer.rank_processes import Launcher
from tests.trainer.user_tasks.drives import (
    WAIT,
    Runs,
    Variant,
    command,
    difference,
    finish,
    metrics,
    tensor_files,
)
from tests.trainer.user_tasks.table import STRATEGIES, TASKS, UserTask
from tests.trainer.user_tasks.test_kill_and_resume import SGD

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(4 * WAIT),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ROUNDING = 1e-5
"""Largest difference between two equal runs, where sums have no fixed order."""
CASES = [
    pytest.param(
        task, Variant(STRATEGIES[place % len(STRATEGIES)], ema=place % 2 == 0), id=task.name
    )
    for place, task in enumerate(TASKS)
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_check_accepts_the_task_on_cuda(launcher: Launcher, task: UserTask) -> None:
    settings = ["--device=cuda", "--world-size=4", "--global_batch=12", "--max_steps=9"]
    gang = command(launcher, "check", task, *settings)
    assert gang.wait() == [0], gang.err(0)
    assert gang.events("warning") == []


@pytest.mark.parametrize(("task", "variant"), CASES)
def test_two_ranks_on_cuda_resume_with_the_same_bits(
    launcher: Launcher, tmp_path: Path, task: UserTask, variant: Variant
) -> None:
    own = SGD if task.varies_on_cuda else ("--deterministic=true",)
    runs = Runs(launcher, task, ("--device=cuda", *own, *variant.settings), tmp_path)
    whole = finish(runs.train("whole", 2))
    runs.train_and_kill("broken", 2)
    resumed = finish(runs.train("broken", 2), resumed=True)
    whole_dir, broken_dir = tmp_path / "whole", tmp_path / "broken"
    if task.varies_on_cuda:
        assert difference(whole_dir, broken_dir) <= ROUNDING
    else:
        assert metrics(whole) == metrics(resumed)
        assert tensor_files(whole_dir) == tensor_files(broken_dir)
