"""Tests of post-local SGD."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

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
