"""Tests of post-local SGD."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ddp_trainer.config import LocalSgdConfig
from ddp_trainer.parallel import local_sgd
from ddp_trainer.parallel.local_sgd import LocalSgd
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, trained


def test_ranks_hold_equal_weights_after_each_period(launcher: Launcher) -> None:
    config = {"global_batch": 4, "parallel": {"local_sgd": {"period": 3, "start_step": 2}}}
    gang = launcher.call("probes:measure_local_sgd", SGD | config, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    found = [event["difference"] for event in gang.events("probe")]
    # Updates 0 and 1 reduce every gradient. Updates 2 to 4 and 5 to 7 are periods.
    assert [value == 0 for value in found] == [True, True, False, False, True, False, False, True]


def test_saved_weights_are_the_average_of_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    # With plain SGD and an average after each update, local SGD makes the updates of ddp.
    settings: dict[str, Any] = {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False},
        "global_batch": 10,
        "max_steps": 5,
        "ema": {"decay": 0.9},
    }
    config = SGD | settings | {"parallel": {"local_sgd": {"period": 1}}}
    gang = launcher.train(
        "--task=sample_tasks:build",
        f"--config={json.dumps(config)}",
        world=2,
        DDP_CHECKPOINT_DIR=str(tmp_path),
    )
    alone = trained(**settings)
    assert gang.wait() == [0, 0], gang.err(0)
    found = load_file(max(tmp_path.glob("step-*")) / "ema.safetensors")
    assert alone.learner.ema
    for name, average in alone.learner.ema.state().items():
        assert average.allclose(found[name], atol=1e-6, rtol=0), name


LOCAL: dict[str, Any] = {
    "max_steps": 6,
    "optimizer": {"name": "adamw"},
    "parallel": {"local_sgd": {"period": 2}, "find_unused_parameters": True},
}


def test_ranks_that_have_trained_different_weights_refuse_to_average(launcher: Launcher) -> None:
    config = f"--config={json.dumps(LOCAL)}"
    gang = launcher.train("--task=local_tasks:build", config, world=2)
    assert gang.wait() == [2, 2], gang.err(0)
    assert "rank 0 has the optimizer state exp_avg of weight 5 of 8 (shape [8, 8])" in gang.err(0)
    assert "but rank 1 does not" in gang.err(0)


def test_ranks_that_have_trained_all_weights_together_average_them(launcher: Launcher) -> None:
    config = LOCAL | {"parallel": {"local_sgd": {"period": 2, "start_step": 1}}}
    config["parallel"]["find_unused_parameters"] = True
    gang = launcher.train("--task=local_tasks:build", f"--config={json.dumps(config)}", world=2)
    assert gang.wait() == [0, 0], gang.err(0)


@pytest.mark.parametrize(("used", "comparisons"), [(2, 1), (1, 3)])
def test_ranks_compare_their_moments_until_each_weight_has_them(
    used: int, comparisons: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def alone(value: int, _device: torch.device) -> list[int]:
        compared.append(value)
        return [value]

    monkeypatch.setattr(local_sgd, "by_rank", alone)
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW(params)
    averager = LocalSgd(params, optimizer, LocalSgdConfig(period=1), 1)
    for step in range(3):
        for param in params[:used]:
            param.grad = torch.ones(2)
        optimizer.step()
        averager.after_update(step)
    assert len(compared) == comparisons
