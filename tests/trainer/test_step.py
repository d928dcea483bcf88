"""Tests of the arithmetic and the cost of one update."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.data.sampler import GlobalSampler
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.run.saving import save
from ddp_trainer.seeds import seed_all
from ddp_trainer.step import train_step
from ddp_trainer.task import is_indexed
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, distance, opened, trained

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("uneven", [False, True])
def test_gradient_accumulation_equals_one_large_batch(uneven: bool) -> None:
    # 50 samples in batches of 12: the last update of an epoch has two samples.
    settings: dict[str, Any] = {"global_batch": 12, "epochs": 3, "task": {"uneven": uneven}}
    big = trained(**settings)
    small = trained(micro_batch=4, **settings)
    assert big.position.step == small.position.step == 15
    assert distance(big.learner.model, small.learner.model) < 1e-6


def test_one_update_equals_that_of_plain_torch() -> None:
    settings: dict[str, Any] = {"global_batch": 10, "task": {"uneven": True}}
    run, twin = opened(clip_norm=0.5, **settings), opened(**settings).learner.model
    weights = [param for param in twin.parameters() if param.dim() > 1]
    biases = [param for param in twin.parameters() if param.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    assert isinstance(run.sampler, GlobalSampler)
    order, data = run.sampler.order(0), run.task.train_data
    assert is_indexed(data)
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(2):
        samples = [data[index] for index in order[10 * step : 10 * step + 10]]
        x, y, weight, _ = (torch.stack(parts) for parts in zip(*samples, strict=True))
        each = nn.functional.cross_entropy(twin(x), y, reduction="none")
        optimizer.zero_grad()
        ((each * weight).sum() / weight.sum()).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.step()
        train_step(run.learner, next(updates), step, 0.5)
        assert distance(run.learner.model, twin) < 1e-6


@pytest.mark.slow
def test_several_ranks_reach_the_weights_of_one_process(launcher: Launcher, tmp_path: Any) -> None:
    # 50 samples in batches of 12 leave 2 samples for 3 ranks, so one rank has none.
    config = SGD | {"global_batch": 12, "epochs": 2, "task": {"uneven": True}, "clip_norm": 1.0}
    gangs = {}
    for world in (1, 2, 3):
        extra = [f"--checkpoint.directory={tmp_path / str(world)}"]
        if world == 2:
            extra.append("--micro_batch=2")
        arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}", *extra]
        gangs[world] = launcher.train(*arguments, world=world)
    for world, gang in gangs.items():
        assert gang.wait() == [0] * world
    one, two, three = (
        load_file(max((tmp_path / str(world)).glob("step-*")) / "model.safetensors")
        for world in (1, 2, 3)
    )
    for key, value in one.items():
        assert value.allclose(two[key], atol=1e-6, rtol=0)
        assert value.allclose(three[key], atol=1e-6, rtol=0)


STEADY: dict[str, Any] = {"global_batch": 8, "micro_batch": 2, "clip_norm": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reductions", "others"),
    [
        ({"optimizer": {"name": "sgd"}}, 1, []),
        ({"optimizer": {"name": "adamw"}}, 1, []),
        ({"micro_batch": 1}, 1, []),
        ({"global_batch": 9}, 1, []),
        ({"ema": {"decay": 0.9}, "collect_every_steps": 1}, 1, []),
        ({"parallel": {"strategy": "zero1"}}, 1, ["gloo:broadcast"] * 2),
        ({"parallel": {"local_sgd": {"period": 100}}}, 0, []),
    ],
)
def test_steady_step_reduces_each_bucket_once_without_host_sync(
    launcher: Launcher, settings: dict[str, Any], reductions: int, others: list[str]
) -> None:
    gang = launcher.call("probes:profile_steady_step", STEADY | settings, world=2)
    assert gang.wait() == [0, 0]
    (counts,) = gang.events("probe")
    assert counts["buckets"] == 1
    assert counts["reductions"] == reductions
    assert counts["other"] == others
    assert counts["syncs"] == 0


@pytest.mark.slow
def test_first_reduction_begins_early_in_the_backward_pass(launcher: Launcher) -> None:
    model = {"context": 16, "layers": 2, "width": 160}
    settings = {"path": "ddp_trainer.tasks.gpt:build", "global_batch": 4, "task": model}
    gang = launcher.call("probes:profile_steady_step", settings, world=2)
    assert gang.wait() == [0, 0]
    (counts,) = gang.events("probe")
    assert counts["reductions"] == counts["buckets"] == 2, "one of 1 MB, then one of at most 25 MB"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "reductions"), [("find_unused_parameters", 2), ("static_graph", 1)]
)
def test_static_graph_detects_unused_parameters_only_once(
    launcher: Launcher, setting: str, reductions: int
) -> None:
    settings = STEADY | {"parallel": {setting: True}, "task": {"unused": True}}
    gang = launcher.call("probes:profile_steady_step", settings, world=2)
    assert gang.wait() == [0, 0]
    (counts,) = gang.events("probe")
    assert counts["reductions"] == reductions


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_reach_a_similar_loss(precision: str) -> None:
    settings: dict[str, Any] = {"global_batch": 10, "epochs": 2, "clip_norm": 1.0}
    exact = trained(**settings)
    rough = trained(precision=precision, **settings)
    evaluate_run(rough)
    evaluate_run(exact)
    assert rough.metrics["loss"] == pytest.approx(exact.metrics["loss"], rel=0.05)
    assert rough.learner.scaler.is_enabled() == (precision == "fp16")


def test_fp16_overflow_skips_the_update_and_lowers_the_scale() -> None:
    run = opened(global_batch=10, precision="fp16", max_steps=2)
    before = [param.clone() for param in run.learner.model.parameters()]
    run.learner.scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    updates = by_update(on_device(run.train_loader, run.learner.device))
    train_step(run.learner, next(updates), 0, 1.0)
    after = list(run.learner.model.parameters())
    assert all(a.equal(b) for a, b in zip(after, before, strict=True))
    assert run.learner.scaler.get_scale() == pytest.approx(5e37)
    assert all(param.grad is None for param in after)
    assert run.learner.totals.read()[2] == 1
    twin = opened(global_batch=10, max_steps=2)
    others = by_update(on_device(twin.train_loader, twin.learner.device))
    assert len(list(next(others))) == 1
    for learner, batches in ((run.learner, updates), (twin.learner, others)):
        learner.scaler = torch.amp.GradScaler("cpu", enabled=False)
        learner.precision, learner.sum_scale = "fp32", 1.0
        train_step(learner, next(batches), 1, 1.0)
    # The momentum of the first completed update is its gradient. Skipped updates do not change it.
    assert distance(run.learner.model, twin.learner.model) == 0


@pytest.mark.slow
def test_checkpoint_restores_tied_weights_and_batch_norm(tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "task": {"tied": True, "batch_norm": True},
        "checkpoint": {"directory": str(tmp_path)},
    }
    run = trained(**settings)
    save(run)
    resumed = opened(epochs=2, **settings)
    assert resumed.position.step == run.position.step > 0
    old, new = run.learner.model.state_dict(), resumed.learner.model.state_dict()
    assert all(old[key].equal(new[key]) for key in old)
    assert new["middle.weight"].data_ptr() == new["again.weight"].data_ptr()


def test_random_draws_in_the_loss_depend_only_on_step_and_rank_and_micro_batch() -> None:
    def draws(rank: int, first: int) -> list[tuple[float, ...]]:
        """Return the random draws in the updates from `first` to 3, by update and micro-batch."""
        run = opened("sample_tasks:build_drawing", global_batch=10, micro_batch=5)
        run.learner.rank = rank
        updates = [list(update) for update in by_update(on_device(run.train_loader, CPU))]
        seed_all(rank + first)  # Whatever was drawn before.
        for step in range(first, 4):
            train_step(run.learner, iter(updates[step]), step, 1.0)
        return run.task.draws  # type: ignore[attr-defined, no-any-return]

    one, other = draws(0, first=0), draws(1, first=0)
    assert draws(0, first=2) == one[4:]
    for generator in range(3):
        values = [draw[generator] for draw in one + other]
        assert len(set(values)) == len(values) == 16


def test_placeholder_sample_changes_no_running_statistics() -> None:
    run = opened(global_batch=10, task={"batch_norm": True})
    (micro_batch,) = next(by_update(on_device(run.train_loader, CPU)))
    placeholder = micro_batch._replace(weight=0.0)
    before = {name: buffer.clone() for name, buffer in run.learner.model.named_buffers()}
    train_step(run.learner, iter([placeholder]), 0, 1.0)
    after = dict(run.learner.model.named_buffers())
    assert "norm.running_mean" in before
    assert all(after[name].equal(buffer) for name, buffer in before.items())
    assert run.learner.totals.read().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_run_with_drop_last_ends_each_epoch_with_a_whole_batch(tmp_path: Path) -> None:
    # 50 samples are 4 batches of 12. The run resumes in the middle of its second epoch.
    settings: dict[str, Any] = {
        "global_batch": 12,
        "data": {"drop_last": True},
        "checkpoint": {"directory": str(tmp_path)},
        "task": {"log_dir": str(tmp_path), "batch_norm": True},
    }
    first = trained(max_steps=6, **settings)
    save(first)
    assert (first.position.step, first.position.samples, first.epoch) == (6, 74, 2)
    run = trained(epochs=3, **settings)
    assert (run.position.step, run.position.samples, run.total_steps) == (12, 150, 12)
    assert isinstance(run.sampler, GlobalSampler)
    lines = (tmp_path / "0.txt").read_text().splitlines()
    used = [list(map(int, line.split())) for line in lines]
    orders = [run.sampler.order(epoch)[:48] for epoch in range(3)]
    assert used == [order[at : at + 12] for order in orders for at in range(0, 48, 12)]
