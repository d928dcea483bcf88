"""Tests of the command `bench`."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddp_trainer.tools.scaling.point import ScalingPoint, strong_efficiency, table, weak_efficiency
from ddp_trainer.tools.scaling.stopwatch import Stopwatch
from ddp_wire.contract import ExitCode
from tests.trainer.rank_processes import Launcher

TASK = "ddp_trainer.tasks.miniresnet:build"


def test_efficiencies_and_table_of_two_world_sizes() -> None:
    single = ScalingPoint(world_size=1, global_batch=8, step_ms=4.0, wait_fraction=0.0)
    wider = ScalingPoint(
        world_size=2, global_batch=16, step_ms=5.0, wait_fraction=0.1, minimal_ms=4.0
    )
    assert weak_efficiency(wider, single) == pytest.approx(0.8)
    faster = ScalingPoint(world_size=2, global_batch=8, step_ms=2.5, wait_fraction=0.0)
    assert strong_efficiency(faster, single) == pytest.approx(0.8)
    last = table("ranks", [single, wider], [1.0, 0.8]).splitlines()[-1]
    assert last.startswith("| 2 | 8 | 3200 | 5.00 | 80.0% | 10.0% | 1.250 |")


def test_stopwatch_yields_every_batch_and_times_those_after_the_warm_up() -> None:
    watch = Stopwatch(range(5), torch.device("cpu"), warmup=2)
    assert list(watch) == [0, 1, 2, 3, 4]
    assert watch.seconds >= watch.waited > 0


@pytest.mark.slow
def test_bench_measures_two_world_sizes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddp_trainer", "bench", "--task", TASK, "--ranks=1,2"]
    command += ["--updates=10", "--warmup=5", "--repeats=1", "--global_batch=32"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in rows if row[0] in ("| 1", "| 2")] == [
        ["| 1", "16"],
        ["| 2", "16"],
        ["| 1", "32"],
        ["| 2", "16"],
    ]
    for row in rows:
        if row[0] == "| 2":
            assert float(row[8]) > 0  # DDP measured the time of its reductions
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--ranks=0,2"],
            'bench: --ranks must be integers above 0, separated by commas, not "0,2"',
        ),
        (["--updates=0"], "bench: --updates must be 1 or more, not 0"),
        (
            ["--ranks=5", "--global_batch=4"],
            "config: global_batch 4 is less than the number of ranks, 5; each rank needs a sample",
        ),
        (["--task.wdth=8"], 'config: unknown key "task.wdth"; did you mean "task.width"?'),
    ],
)
def test_bench_reports_a_mistake_in_one_sentence(
    launcher: Launcher, arguments: list[str], sentence: str
) -> None:
    command = ["bench", "--task", TASK, *arguments]
    gang = launcher.call("rank_processes:run_command", command, world=None)
    assert gang.wait() == [ExitCode.BAD_INPUT]
    assert gang.err(0).strip() == sentence
