"""Tests of compressed gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ddp_trainer.parallel.compression import communication_share
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD

TASK = "--task=sample_tasks:build"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(max(folder.glob("step-*")) / "model.safetensors")


def difference(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    return max(float((ours[key] - theirs[key]).abs().max()) for key in ours)


@pytest.mark.parametrize(
    ("compression", "least", "most"),
    [
        ({"name": "fp16"}, 1e-9, 1e-3),
        ({"name": "powersgd", "start_step": 2}, 1e-5, 0.2),
        ({"name": "fp16", "adaptive": True, "share": 0.99}, 0.0, 0.0),
    ],
    ids=json.dumps,
)
def test_compressed_training_stays_close_to_plain_training(
    launcher: Launcher, tmp_path: Path, compression: dict[str, Any], least: float, most: float
) -> None:
    config = SGD | {"global_batch": 8, "max_steps": 20}
    for name, parallel in (("plain", {}), ("compressed", {"compression": compression})):
        document = json.dumps(config | {"parallel": parallel})
        gang = launcher.train(
            TASK, f"--config={document}", world=2, DDP_CHECKPOINT_DIR=str(tmp_path / name)
        )
        assert gang.wait() == [0, 0], gang.err(0)
    assert least <= difference(tmp_path / "plain", tmp_path / "compressed") <= most


def test_adaptive_compression_starts_when_the_measured_share_is_reached(
    launcher: Launcher, tmp_path: Path
) -> None:
    parallel = {"compression": {"name": "fp16", "adaptive": True, "share": 1e-9}}
    config = json.dumps({"parallel": parallel, "global_batch": 8, "log": {"every_steps": 5}})
    arguments = [TASK, f"--config={config}"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    first = launcher.train(*arguments, "--max_steps=20", world=2, **folder)
    assert first.wait() == [0, 0]
    (note,) = first.events("note")
    assert note["message"].startswith("compression: fp16 from step")
    assert json.loads((max(tmp_path.glob("step-*")) / "state.json").read_text())["compression_on"]
    resumed = launcher.train(*arguments, "--max_steps=30", world=2, **folder)
    assert resumed.wait() == [0, 0]
    assert resumed.events("note") == []


def test_communication_share_is_zero_without_measurements_of_torch() -> None:
    assert communication_share(nn.Linear(1, 1)) == 0.0


@pytest.mark.slow
def test_bf16_compression_raises_an_error_on_the_cpu(launcher: Launcher) -> None:
    gang = launcher.train(TASK, "--parallel.compression.name=bf16", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0) == ("config: parallel.compression.name bf16 needs CUDA; the CPU has fp16\n")
