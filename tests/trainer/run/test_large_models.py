"""A model whose weights `build` defers trains, is saved and resumes with fsdp2."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint.plain_reader import read_checkpoint
from tests.trainer.checkpoint.test_format_page import check_bits
from tests.trainer.rank_processes import Launcher


def config(home: Path, steps: int, **task: Any) -> dict[str, Any]:
    return {
        "max_steps": steps,
        "global_batch": 8,
        "optimizer": {"name": "adamw"},
        "parallel": {"strategy": "fsdp2"},
        "checkpoint": {"directory": str(home / "run"), "part_mb": 1, "background": False},
        "task": task,
    }


def saved(launcher: Launcher, home: Path, steps: int, **task: Any) -> Any:
    """Train until a step and save. Return the checkpoint as a plain reader finds it."""
    given = {
        "task": "large_task:build",
        "config": config(home, steps, **task),
        "state": str(home / "state"),
    }
    gang = launcher.call("format_probes:save_and_gather", given, world=2)
    assert gang.wait(120) == [0, 0], gang.err(0)
    return read_checkpoint(max((home / "run").glob("step-*")))


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_deferred_weights_are_trained_saved_and_restored_bit_for_bit(
    launcher: Launcher, tmp_path: Path, tied: bool
) -> None:
    first = saved(launcher, tmp_path, 1, tied=tied)
    second = saved(launcher, tmp_path, 2, tied=tied)
    assert ("head.weight" in second["tensors"]["model"]) != tied
    at_start = torch.load(tmp_path / "state.start")["tensors"]
    check_bits(first, at_start)
    check_bits(second, torch.load(tmp_path / "state")["tensors"])
    weights = torch.load(tmp_path / "state")["tensors"]["model"]
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())
    inner = weights["blocks.0.inner.weight"]
    assert 0.5 / 512**0.5 < float(inner.std()) * 3**0.5 < 1.5 / 512**0.5  # As Linear sets it.


@pytest.mark.slow
def test_module_without_a_method_for_first_values_is_refused(launcher: Launcher) -> None:
    arguments = ["--task=format_probes:build_without_values", "--global_batch=8", "--max_steps=1"]
    gang = launcher.train(*arguments, "--parallel.strategy=fsdp2", world=2)
    assert gang.wait() == [2, 2]
    assert 'the module "model" (Bare) was built within env.deferred_weights()' in gang.err(0)


@pytest.mark.slow
def test_model_larger_than_the_memory_of_a_rank_trains_is_saved_and_resumes(
    launcher: Launcher, tmp_path: Path
) -> None:
    # Weights, gradients and two moments of fp32. Each of 4 ranks has 128 MiB of the 512 MiB.
    state = 4 * 4 * 32 * 1024 * 1024
    limit = 232 << 20  # Of which about 70 MiB are the stacks of threads.
    assert state > 2.2 * limit
    for steps in (1, 2):
        settings = json.dumps(config(tmp_path, steps, width=1024, layers=32))
        arguments = ["--task=large_task:build", f"--config={settings}"]
        given = {"limit": limit, "arguments": arguments}
        gang = launcher.call("format_probes:train_within_limit", given, world=4)
        assert gang.wait(300) == [0] * 4, gang.err(0) + gang.err(1)
    assert [event["step"] for event in gang.events("resume")] == [1]
    assert len(list(max((tmp_path / "run").glob("step-*")).glob("model-*"))) == 4
