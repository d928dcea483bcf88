"""Tests of training without operator or network, under Slurm, and with code from a ConfigMap."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.ranks.slurm import variables_of_slurm
from tests.harness.ports import free_port
from tests.trainer.rank_processes import Launcher

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "own-task.yaml"


@pytest.mark.parametrize("world", [None, 2])
def test_training_connects_to_no_other_host(launcher: Launcher, world: int | None) -> None:
    gang = launcher.call("probes:train_without_network", [], world=world)
    assert gang.wait() == [0] * (world or 1), gang.err(0)
    assert gang.events("summary")


@pytest.mark.slow
def test_ranks_under_slurm_form_one_process_group(tmp_path: Path) -> None:
    slurm = {
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_JOB_NODELIST": "localhost",
        "MASTER_PORT": str(free_port()),
    }
    assert variables_of_slurm({**slurm, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"})["RANK"] == "1"
    command = [sys.executable, "-m", "ddp_trainer", "train", "--max_steps=2"]
    command += ["--task=ddp_trainer.tasks.miniresnet:build", "--device=cpu"]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | slurm | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert '"world_size": 2' in outputs[0][0]


@pytest.mark.slow
def test_sample_job_trains_a_task_from_its_config_map(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddp_operator.cli.main", "run", str(SAMPLE)]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.strip().split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert float(lines["test accuracy"]) >= 0.94
    assert lines["steps"] == "300"
