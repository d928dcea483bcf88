"""Tests of fsdp2: its gathers and reductions, and equal weights to ddp."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, trained

GPT = "ddp_trainer.tasks.gpt:build"
PROBE = "sample_tasks:build"
SETTINGS: dict[str, dict[str, Any]] = {
    GPT: {"layers": 2, "width": 16, "context": 8, "max_chars": 4000},
    PROBE: {"batch_norm": True},
}
UNITS, PASSES = 3, 2
"""Number of parts of the GPT that are gathered separately, and of micro-batches per update."""

Calls = Counter[tuple[str, str]]


def calls(launcher: Launcher, path: str, **settings: Any) -> tuple[Calls, dict[str, int]]:
    """Return the number of collectives by name and data type, and the bytes by name."""
    parallel = {"strategy": "fsdp2"} | settings.pop("parallel", {})
    config = {"global_batch": 8, "micro_batch": 2, "parallel": parallel, "task": SETTINGS[path]}
    gang = launcher.call("update_probes:record_collectives", (path, config | settings), world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (found,) = gang.events("probe")
    sizes = dict.fromkeys((name for name, _, _ in found["calls"]), 0)
    for name, _, size in found["calls"]:
        sizes[name] += size
    return Counter((name, dtype) for name, dtype, _ in found["calls"]), sizes


@pytest.mark.slow
def test_fsdp2_with_bf16_gathers_half_the_bytes_and_reduces_in_fp32(launcher: Launcher) -> None:
    exact, exact_bytes = calls(launcher, GPT)
    rough, rough_bytes = calls(launcher, GPT, precision="bf16")
    # The last block stays gathered between its passes only if torch prefetches it, so at least.
    assert {name for name, dtype in exact if dtype != "float32"} == set()
    gathers = exact["allgather_base", "float32"]
    assert gathers >= 2 * PASSES * (UNITS - 1)
    assert rough["allgather_base", "bfloat16"] == gathers
    assert rough_bytes["allgather_base"] == exact_bytes["allgather_base"] // 2
    assert rough["allgather_base", "float32"] == 0
    assert rough["reduce_scatter_base", "float32"] == exact["reduce_scatter_base", "float32"]
    assert rough_bytes["reduce_scatter_base"] == exact_bytes["reduce_scatter_base"]


def test_fsdp2_with_bf16_gathers_a_model_with_batch_norm_in_fp32(launcher: Launcher) -> None:
    found, _ = calls(launcher, PROBE, precision="bf16")
    assert found["allgather_base", "float32"] > 0
    assert found["allgather_base", "bfloat16"] == 0


@pytest.mark.slow
def test_fsdp2_reduces_each_micro_batch_unless_whole_gradients_are_accumulated(
    launcher: Launcher,
) -> None:
    found, _ = calls(launcher, GPT)
    assert found["reduce_scatter_base", "float32"] == PASSES * UNITS
    found, _ = calls(launcher, GPT, parallel={"full_gradients": True})
    assert found["reduce_scatter_base", "float32"] == UNITS
    with pytest.raises(InputError, match='"full_gradients" must not be set with zero1'):
        resolve({"parallel": {"strategy": "zero1", "full_gradients": True}})


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_fsdp2_with_accumulation_gives_the_weights_of_one_process(
    launcher: Launcher, tmp_path: Path, full: bool
) -> None:
    task = {"uneven": True, "tied": True}
    settings: dict[str, Any] = {"global_batch": 12, "max_steps": 6, "clip_norm": 1.0, "task": task}
    parallel = {"strategy": "fsdp2", "full_gradients": full}
    config = SGD | settings | {"micro_batch": 2, "parallel": parallel}
    gang = launcher.train(
        f"--task={PROBE}",
        f"--config={json.dumps(config)}",
        world=2,
        DDP_CHECKPOINT_DIR=str(tmp_path),
    )
    alone = trained(**settings)
    assert gang.wait() == [0, 0], gang.err(0)
    found = load_file(max(tmp_path.glob("step-*")) / "model.safetensors")
    for name, weight in alone.learner.model.state_dict().items():
        if name in found:
            assert weight.allclose(found[name], atol=1e-6, rtol=0), name


@pytest.mark.slow
def test_fsdp2_with_bf16_reaches_the_loss_of_ddp_with_bf16(launcher: Launcher) -> None:
    config = {"global_batch": 8, "max_steps": 40, "precision": "bf16", "task": SETTINGS[GPT]}
    losses = []
    for strategy in ("ddp", "fsdp2"):
        gang = launcher.train(
            f"--task={GPT}",
            f"--config={json.dumps(config)}",
            f"--parallel.strategy={strategy}",
            world=2,
        )
        assert gang.wait() == [0, 0], gang.err(0)
        losses.append(gang.events("summary")[0]["metrics"]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.slow
def test_scalar_parameter_is_refused_by_fsdp2_on_all_ranks(launcher: Launcher) -> None:
    arguments = ["--task=model_mistakes:build", "--task.name=number_as_a_weight", "--max_steps=1"]
    gang = launcher.train(*arguments, "--parallel.strategy=fsdp2", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0).startswith('task: fsdp2 cannot split the parameter "middle.scale", because')
    assert launcher.train(*arguments, "--parallel.strategy=zero1", world=2).wait() == [0, 0]
