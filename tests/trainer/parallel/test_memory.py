"""Tests of the memory estimate: it equals the bytes of the tensors that each rank holds."""

import json
from typing import Any

import pytest

from ddp_trainer.parallel.memory import Footprint, Size, advise
from tests.trainer.rank_processes import Launcher

TASK = "--task=sample_tasks:build"
COUNT_PARAM = 8
"""Bytes of the parameter that carries the loss count, and of its gradient."""
GPT = {"layers": 2, "width": 20, "context": 8, "max_chars": 4000}


def test_message_states_the_memory_per_rank_and_a_strategy_that_fits() -> None:
    gib = 1 << 30
    # One rank owns the state of a single parameter, however many ranks there are.
    single = Footprint(params=(Size((gib, 10), 1),), moments=2)
    assert single.by_strategy(4) == {"ddp": 40 * gib, "zero1": 40 * gib, "fsdp2": 10 * gib}
    model = Footprint(params=(Size((gib // 4, 10), 1),) * 4, moments=2)
    assert model.by_strategy(4) == {"ddp": 40 * gib, "zero1": 25 * gib, "fsdp2": 10 * gib}
    assert advise(model, 4, "ddp", 80 * gib) is None
    assert advise(model, 4, "ddp", 48 * gib) == (
        "memory: weights, gradients and optimizer need 40.0 GiB of the 48.0 GiB of a device with"
        " parallel.strategy ddp; zero1 needs 25.0 GiB"
    )
    advice = advise(model, 4, "zero1", 8 * gib)
    assert advice
    assert advice.endswith("fsdp2 needs 10.0 GiB, so more ranks are needed")


def test_start_of_a_run_states_the_memory_that_a_rank_needs(launcher: Launcher) -> None:
    gang = launcher.train(TASK, "--max_steps=1", "--ema.decay=0.5", world=None)
    assert gang.wait() == [0]
    (start,) = gang.events("start")
    assert start["bytes_per_rank"]["ddp"] == 5 * 4 * start["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "settings"),
    [
        ({"strategy": "ddp"}, {"ema": {"decay": 0.5}}),
        ({"strategy": "zero1"}, {"optimizer": {"name": "sgd"}}),
        ({"strategy": "fsdp2"}, {"ema": {"decay": 0.5}, "precision": "bf16"}),
        ({"strategy": "fsdp2", "full_gradients": True}, {}),
    ],
    ids=json.dumps,
)
def test_memory_estimate_equals_the_bytes_of_the_tensors(
    launcher: Launcher, parallel: dict[str, Any], settings: dict[str, Any]
) -> None:
    # 3 ranks divide neither the width of the model nor its number of symbols.
    config = {"global_batch": 6, "micro_batch": 1, "parallel": parallel, "task": GPT} | settings
    gang = launcher.call("update_probes:measure_held", config, world=3)
    assert gang.wait() == [0, 0, 0], gang.err(0)
    (found,) = gang.events("probe")
    assert found["estimate"] <= max(found["held"]) <= found["estimate"] + COUNT_PARAM
