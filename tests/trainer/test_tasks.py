"""The bundled tasks learn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ddp_trainer.tasks.gpt import GptConfig, GptTask
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
        "--log.peak_tflops=1",
        world=2,
    )
    assert gang.wait() == [0, 0]
    newest = gang.events("progress")[-1]
    flops = GptTask(GptConfig(width=32, layers=1)).flops_per_sample
    used = newest["samples_per_second"] * flops / 2e12
    assert newest["mfu"] == pytest.approx(used, rel=1e-4)
    # Characters by their frequency alone have 3.2 nats, and 4.5 if all are alike.
    assert gang.events("summary")[0]["metrics"]["loss"] < 2.9


def test_the_work_that_the_gpt_states_is_what_torch_counts() -> None:
    task = GptTask(GptConfig(width=128, context=32, max_chars=100_000))
    batch = torch.stack([task.train_data[index] for index in range(4)])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task.loss(task.model, batch).sum.backward()
    assert 4 * task.flops_per_sample == pytest.approx(counter.get_total_flops(), rel=0.02)
