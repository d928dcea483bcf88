"""The bundled tasks learn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.rank_processes import Launcher


@pytest.mark.slow
def test_digits_through_torchrun_as_the_agent_starts_it(tmp_path: Path) -> None:
    environ = os.environ | {
        "DDP_TASK": "ddp_trainer.tasks.miniresnet:build",
        "DDP_CONFIG": '{"epochs": 20, "global_batch": 256}',
        "DDP_CHECKPOINT_DIR": str(tmp_path / "ck"),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "ddp_trainer", "train"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["event"] == "summary"
    assert summary["metrics"]["accuracy"] >= 0.97
    assert summary["seconds"] < 30


def test_characters(launcher: Launcher) -> None:
    gang = launcher.train(
        "--task=ddp_trainer.tasks.gpt:build",
        "--max_steps=60",
        "--global_batch=64",
        "--task.width=32",
        "--task.layers=1",
        "--clip_norm=1.0",
        "--optimizer.lr=0.01",
        world=2,
    )
    assert gang.wait() == [0, 0]
    # Characters by their frequency alone have 3.2 nats, and 4.5 if all are alike.
    assert gang.events("summary")[0]["metrics"]["loss"] < 2.9
