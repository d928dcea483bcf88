"""`check` accepts the tasks without a warning, and `verify` finds the same weights on all ranks."""

import re

import pytest

from tests.trainer.rank_processes import Launcher
from tests.trainer.user_tasks.drives import FIGURES, TOLERANCE, Figure, cases, command
from tests.trainer.user_tasks.table import TASKS, UserTask


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_check_accepts_the_task(launcher: Launcher, task: UserTask) -> None:
    settings = ["--world-size=4", "--global_batch=12", "--max_steps=9"]
    gang = command(launcher, "check", task, *settings)
    assert gang.wait() == [0], gang.err(0)
    assert gang.events("warning") == []
    FIGURES.append(Figure(task.name, "check"))


@pytest.mark.slow
@pytest.mark.parametrize("task", cases(0))
def test_verify_finds_the_same_weights(launcher: Launcher, task: UserTask) -> None:
    gang = command(launcher, "verify", task, *task.verify, "--global_batch=16")
    assert gang.wait(timeout=240) == [0], gang.out(0) + gang.err(0)
    FIGURES.append(Figure(task.name, "verify", largest_in(gang.out(0))))


def largest_in(table: str) -> float:
    """Return the largest difference in a table of `verify`, in fp64 where that was needed."""
    rows = re.findall(r"^ +\d+ +\S+ +\d+ +(\S+)  (?:ok|\S+, (\S+) in fp64)$", table, re.MULTILINE)
    assert len(rows) == 9, table
    largest = max(float(in_fp64 or in_fp32) for in_fp32, in_fp64 in rows)
    assert largest <= TOLERANCE
    return largest
