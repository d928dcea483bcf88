"""Tests that weights stay finite when gradients are not finite."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddp_trainer.config import NonFiniteConfig, ParallelConfig
from ddp_trainer.numerics.guard import Guard, NonFiniteError, NonFiniteTracker
from ddp_trainer.parallel.strategy import Strategy
from ddp_trainer.run.exchange import exchange_requests
from ddp_trainer.run.saving import save
from ddp_trainer.saved_state import NonFiniteCounts
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import opened, trained

TASK = "--task=sample_tasks:build"
OWN = "--task=sample_tasks:build_own"
BAD = ["--global_batch=10", "--task.nan_sample=7", "--log.every_steps=5"]


def finite(folder: Path) -> bool:
    return all(
        bool(tensor.isfinite().all())
        for path in folder.glob("step-*/*.safetensors")
        for tensor in load_file(path).values()
    )


def test_all_ranks_skip_the_same_update_and_report_it(launcher: Launcher, tmp_path: Path) -> None:
    arguments = [TASK, *BAD, "--epochs=2", "--optimizer.name=sgd", "--optimizer.lr=0.1"]
    gangs = {
        world: launcher.train(
            *arguments, world=world, DDP_CHECKPOINT_DIR=str(tmp_path / str(world))
        )
        for world in (1, 2)
    }
    for world, gang in gangs.items():
        assert gang.wait() == [0] * world, gang.err(0)
        assert [event["message"] for event in gang.events("warning")] == [
            f"1 of 5 updates up to step {step} had gradients that are not finite:"
            " the optimizer skipped them"
            for step in (5, 10)
        ]
        assert finite(tmp_path / str(world))
    one, two = (
        load_file(max((tmp_path / str(world)).glob("step-*")) / "model.safetensors")
        for world in (1, 2)
    )
    assert all(value.allclose(two[key], atol=1e-6, rtol=0) for key, value in one.items())


@pytest.mark.slow
@pytest.mark.parametrize("task", [TASK, OWN])
def test_policy_stop_ends_the_run_with_a_sentence_and_saves_no_broken_weights(
    launcher: Launcher, tmp_path: Path, task: str
) -> None:
    policy = [] if task == OWN else ["--nonfinite.policy=stop"]
    often = "--checkpoint.every_steps=1"
    gang = launcher.train(task, *BAD, *policy, often, world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [1, 1]
    # Without protection on the device, all that follows a broken update is broken too.
    count = gang.err(0).split()[1]
    assert count == "1" if task == TASK else int(count) >= 1
    sentence = f"training: {count} of 5 updates up to step 5 had gradients that are not finite"
    assert gang.err(0) == sentence + "\n"
    assert finite(tmp_path)


@pytest.mark.slow
def test_rank_with_non_finite_weights_of_its_own_stops_all_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    settings = ["--parallel.local_sgd.period=10", "--checkpoint.every_steps=1"]
    gang = launcher.train(OWN, *BAD, *settings, world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [1, 1]
    assert "gradients that are not finite" in gang.err(0)
    assert finite(tmp_path)


def test_optimizer_of_the_task_skips_an_update_that_is_not_finite() -> None:
    run = trained(
        "sample_tasks:build_own",
        global_batch=10,
        task={"nan_sample": 7},
        nonfinite={"policy": "skip"},
        optimizer={},
    )
    assert all(bool(param.isfinite().all()) for param in run.learner.model.parameters())


def test_rollback_restores_the_weights_and_continues_with_the_next_data(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "global_batch": 10,
        "nonfinite": {"policy": "rollback", "rollbacks": 1},
        "checkpoint": {"directory": str(tmp_path)},
        "ema": {"decay": 0.9},
    }
    run = opened(**settings)
    before = [param.clone() for param in run.learner.model.parameters()]
    save(run)
    for _ in range(2):
        run.advance(10)
    for attempt in range(2):
        with torch.no_grad():
            for param in run.learner.model.parameters():
                param.add_(1.0)
        run.learner.totals.add_update(torch.ones(()))
        run.total_steps = run.position.step
        if attempt:
            with pytest.raises(NonFiniteError, match="after 1 rollbacks"):
                exchange_requests(run)
        else:
            exchange_requests(run)
            after = run.learner.model.parameters()
            assert all(a.equal(b) for a, b in zip(after, before, strict=True))
            assert run.position.step == 2
            assert run.position.samples == 20


def test_run_with_rollbacks_completes(launcher: Launcher, tmp_path: Path) -> None:
    arguments = [OWN, *BAD, "--nonfinite.policy=rollback", "--checkpoint.every_steps=1"]
    gang = launcher.train(*arguments, "--epochs=2", world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [0, 0], gang.err(0)
    warnings = [event["message"] for event in gang.events("warning")]
    assert sum("restored from the newest checkpoint" in message for message in warnings) == 2
    assert finite(tmp_path)


@pytest.mark.slow
def test_rollback_without_a_checkpoint_fails_the_run(launcher: Launcher, tmp_path: Path) -> None:
    arguments = [TASK, *BAD, "--nonfinite.policy=rollback", "--checkpoint.every_steps=100"]
    gang = launcher.train(*arguments, world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [1, 1]
    sentence = "training: gradients were not finite, and there is no checkpoint yet to roll back to"
    assert gang.err(0) == f"{sentence}\n"


def guarded(param: torch.nn.Parameter, *, fused: bool = False) -> Guard:
    optimizer = torch.optim.SGD([param], lr=0.1, weight_decay=0.1, fused=fused)
    return Guard(Strategy(torch.device("cpu"), ParallelConfig()), optimizer, "skip")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0.0, 3.0, 1e-30, float("nan"), float("inf")])
def test_division_flags_a_count_that_is_not_finite(dtype: torch.dtype, count: float) -> None:
    guard = guarded(torch.nn.Parameter(torch.zeros(2)))
    gradient = torch.tensor([1.0, -2.0], dtype=dtype)
    guard.divide([gradient], torch.tensor([count]))
    assert guard.nonfinite.item() == float(not math.isfinite(count))
    if count == 0:
        assert gradient.tolist() == [0.0, 0.0]
    elif not guard.nonfinite.item():
        assert gradient.tolist() == pytest.approx([1 / count, -2 / count], rel=1e-6)


def test_division_of_fp64_gradients_is_exact_and_that_of_fp32_multiplies_by_the_inverse() -> None:
    guard = guarded(torch.nn.Parameter(torch.zeros(100)))
    sums = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    double, single, count = sums.clone(), sums.float(), torch.tensor([7.0])
    guard.divide([double, single], count)
    assert double.equal(sums / 7)
    assert single.equal(sums.float() * count.reciprocal())
    double[3] = torch.inf
    guard.divide([double, single], count)
    assert guard.nonfinite.item() == 1


@pytest.mark.parametrize("count", [8.0, float("nan"), float("inf")])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("fused", [False, True])
def test_count_that_is_not_finite_skips_the_update(
    fused: bool, precision: str, count: float
) -> None:
    param = torch.nn.Parameter(torch.ones(2))
    guard = guarded(param, fused=fused)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    param.grad = scaler.scale(torch.ones(2))
    scaler.unscale_(guard._optimizer)
    guard.divide([param.grad], torch.tensor([count]))
    guard.step(scaler)
    assert param.detach().equal(torch.ones(2)) == (count != 8.0)


def test_patience_counts_non_finite_updates_in_a_row() -> None:
    tracker = NonFiniteTracker(NonFiniteConfig(patience=20), "skip", NonFiniteCounts())
    assert tracker.assess(10, 0, 10) is None
    assert tracker.assess(20, 10, 10)
    assert tracker.assess(30, 9, 10)
    assert tracker.assess(40, 10, 10)
    with pytest.raises(NonFiniteError, match="20 updates in a row"):
        tracker.assess(50, 10, 10)
    again = NonFiniteTracker(NonFiniteConfig(), "skip", tracker.counts())
    assert again.updates == 39
