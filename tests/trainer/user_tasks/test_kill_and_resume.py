"""Tests that a run killed within an epoch ends like an uninterrupted run."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.rank_processes import Launcher
from tests.trainer.user_tasks.drives import (
    FIGURES,
    TOLERANCE,
    WAIT,
    Figure,
    Runs,
    Variant,
    cases,
    difference,
    finish,
    metrics,
    tensor_files,
)
from tests.trainer.user_tasks.table import STRATEGIES, UserTask

VARIANTS = [Variant(strategy, ema) for strategy in STRATEGIES for ema in (False, True)]
SGD = ("--optimizer.name=sgd", "--optimizer.lr=0.05")
"""Settings of SGD. Adam divides by the gradient's size, which amplifies fp32 noise."""


@pytest.mark.slow
@pytest.mark.timeout(4 * WAIT)
@pytest.mark.parametrize(("task", "variant"), cases(1, *VARIANTS))
def test_same_number_of_ranks_gives_the_same_bits(
    launcher: Launcher, tmp_path: Path, task: UserTask, variant: Variant
) -> None:
    runs = Runs(launcher, task, variant.settings, tmp_path)
    whole = finish(runs.train("whole", 2))
    runs.train_and_kill("broken", 2)
    resumed = finish(runs.train("broken", 2), resumed=True)
    assert metrics(whole) == metrics(resumed)
    assert tensor_files(tmp_path / "whole") == tensor_files(tmp_path / "broken")
    FIGURES.append(Figure(task.name, "kill and resume on 2 ranks", 0.0))


@pytest.mark.slow
@pytest.mark.timeout(4 * WAIT)
@pytest.mark.parametrize(("task", "variant"), cases(2, *VARIANTS))
def test_other_numbers_of_ranks_give_the_same_weights(
    launcher: Launcher, tmp_path: Path, task: UserTask, variant: Variant
) -> None:
    """Compare in fp32, and in fp64 if a kink (of a ReLU or a maximum) could be the reason."""
    settings = variant.settings if task.has_optimizer else (*SGD, *variant.settings)
    found: list[float] = []
    for precision in ("fp32", "fp64"):
        home = tmp_path / precision
        home.mkdir()
        own = (*settings, *(task.independent or ()), f"--precision={precision}")
        runs = Runs(launcher, task, own, home)
        finish(runs.train("whole", 2))
        runs.train_and_kill("broken", 2)
        found = [resume_elsewhere(runs, world) for world in (1, 3)]
        if max(found) <= TOLERANCE or task.independent is None:
            break
    if task.independent is None:
        assert min(found) > TOLERANCE, f"{task.name} does not depend on the number of ranks"
        return
    assert max(found) <= TOLERANCE, found
    FIGURES.append(Figure(task.name, "kill and resume on 1 and 3 ranks", max(found)))


def resume_elsewhere(runs: Runs, world: int) -> float:
    """Resume a copy of the killed run, and return its difference from the uninterrupted run."""
    name = f"resumed-{world}"
    shutil.copytree(runs.home / "broken", runs.home / name)
    finish(runs.train(name, world), resumed=True)
    return difference(runs.home / "whole", runs.home / name)
