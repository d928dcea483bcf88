"""Tests that weights and checkpoints are the same with every strategy."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ddp_trainer.config.settings import resolve
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.model import prepare
from ddp_trainer.parallel.blocks import repeated_blocks
from ddp_trainer.parallel.zero1 import owners
from ddp_trainer.run import building
from ddp_trainer.train import loop
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, distance, opened, trained

TASK = "--task=sample_tasks:build"
FILES = ("model.safetensors", "optimizer.safetensors", "ema.safetensors")


def newest(folder: Path) -> dict[str, bytes]:
    names = {path.name: path.read_bytes() for path in max(folder.glob("step-*")).iterdir()}
    return {name: names[name] for name in FILES if name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"parallel": {"strategy": "zero1"}},
        {"parallel": {"strategy": "zero1"}, "optimizer": {"name": "sgd"}},
        {"parallel": {"strategy": "fsdp2"}, "clip_norm": 1.0},
        {"parallel": {"strategy": "fsdp2"}, "optimizer": {"name": "sgd"}, "ema": {"decay": 0.9}},
        {"ema": {"decay": 0.9}, "precision": "fp16"},
        {"parallel": {"local_sgd": {"period": 3, "start_step": 2}}},
        {"parallel": {"static_graph": True}},
        {"parallel": {"compression": {"name": "fp16", "start_step": 3}}},
        {"parallel": {"compression": {"name": "powersgd", "start_step": 2}}},
    ],
    ids=json.dumps,
)
def test_a_killed_run_ends_with_the_bits_of_an_uninterrupted_one(
    launcher: Launcher, tmp_path: Path, settings: dict[str, Any]
) -> None:
    base = {"epochs": 2, "global_batch": 6, "checkpoint": {"every_steps": 5}}
    task = {"samples": 37, "dropout": 0.3, "noise": 0.1}
    config = f"--config={json.dumps(base | settings | {'task': task})}"
    whole = launcher.train(TASK, config, world=2, DDP_CHECKPOINT_DIR=str(tmp_path / "a"))
    broken = {"DDP_CHECKPOINT_DIR": str(tmp_path / "b")}
    die = ["--task.die_after=7", "--task.die_rank=1"]
    assert launcher.train(TASK, config, *die, world=2, **broken).wait()[1] == -9
    last = launcher.train(TASK, config, world=2, **broken)
    assert last.wait() == [0, 0], last.err(0)
    assert whole.wait() == [0, 0]
    assert [event["step"] for event in last.events("resume")] == [5]
    assert newest(tmp_path / "a") == newest(tmp_path / "b")
    ends = [gang.events("summary")[0]["metrics"] for gang in (whole, last)]
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_any_strategy_resumes_the_checkpoint_of_any_other(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = SGD | {
        "global_batch": 16,  # Three ranks have 6, 5 and 5 samples.
        "schedule": {"name": "constant", "warmup_steps": 0},
        "ema": {"decay": 0.9},
        "task": {"uneven": True, "tied": True},
        "clip_norm": 1.0,
    }
    arguments = [TASK, f"--config={json.dumps(config)}"]
    alone = launcher.train(
        *arguments, "--max_steps=15", world=None, DDP_CHECKPOINT_DIR=str(tmp_path / "alone")
    )
    chain = [("fsdp2", 2), ("zero1", 3), ("ddp", 1), ("zero1", 2), ("fsdp2", 3)]
    for count, (strategy, world) in enumerate(chain, start=1):
        gang = launcher.train(
            *arguments,
            f"--max_steps={3 * count}",
            f"--parallel.strategy={strategy}",
            "--micro_batch=2",
            world=world,
            DDP_CHECKPOINT_DIR=str(tmp_path / "chain"),
        )
        assert gang.wait() == [0] * world, gang.err(0)
    assert alone.wait() == [0]
    for file in FILES:
        ours, theirs = (
            load_file(max((tmp_path / name).glob("step-*")) / file) for name in ("chain", "alone")
        )
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert value.allclose(ours[key], atol=1e-6, rtol=0), (file, key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "strategy"),
    [
        ("find_unused_parameters", "ddp"),
        ("find_unused_parameters", "zero1"),
        ("find_unused_parameters", "fsdp2"),
        ("static_graph", "ddp"),
        ("static_graph", "zero1"),
    ],
)
def test_model_with_unused_weights_trains_to_the_weights_of_one_process(
    launcher: Launcher, tmp_path: Path, setting: str, strategy: str
) -> None:
    config = SGD | {"global_batch": 12, "max_steps": 8, "task": {"uneven": True, "unused": True}}
    arguments = [TASK, f"--config={json.dumps(config)}"]
    alone = launcher.train(*arguments, world=None, DDP_CHECKPOINT_DIR=str(tmp_path / "alone"))
    arguments += [f"--parallel.{setting}=true", f"--parallel.strategy={strategy}"]
    parts = launcher.train(
        *arguments, "--micro_batch=2", world=2, DDP_CHECKPOINT_DIR=str(tmp_path / "parts")
    )
    assert parts.wait() == [0, 0], parts.err(0)
    assert alone.wait() == [0], alone.err(0)
    ours, theirs = (
        load_file(max((tmp_path / name).glob("step-*")) / FILES[0]) for name in ("parts", "alone")
    )
    assert "spare.weight" in theirs
    for key, value in theirs.items():
        assert value.allclose(ours[key], atol=1e-6, rtol=0), key


def test_unused_weights_are_named_before_the_first_update(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = ["--task.unused=true", "--global_batch=8", "--checkpoint.every_steps=1"]
    gang = launcher.train(TASK, *arguments, world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [2, 2], gang.err(0)
    assert gang.err(1) == (
        "rank 1, update 1: task: the loss leaves 2 of 9 parameters without a gradient, first"
        ' "spare.weight": set parallel.find_unused_parameters=true, or call requires_grad_(False)'
        " in build\n"
    )
    assert list(tmp_path.glob("step-*")) == []


@pytest.mark.slow
def test_sharded_adamw_learns_like_unsharded_adamw(launcher: Launcher, tmp_path: Path) -> None:
    gangs = {
        name: launcher.train(
            TASK,
            "--max_steps=10",
            "--global_batch=8",
            f"--parallel.strategy={name}",
            world=2,
            DDP_CHECKPOINT_DIR=str(tmp_path / name),
        )
        for name in ("ddp", "zero1", "fsdp2")
    }
    for gang in gangs.values():
        assert gang.wait() == [0, 0], gang.err(0)
    assert newest(tmp_path / "ddp") == newest(tmp_path / "zero1")
    losses = [gang.events("summary")[0]["metrics"]["loss"] for gang in gangs.values()]
    assert losses[2] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.slow
def test_fsdp2_continues_from_its_weights_after_evaluation_of_their_average(
    launcher: Launcher, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "global_batch": 8,
        "max_steps": 6,
        "eval_every_steps": 2,
        "ema": {"decay": 0.9},
    }
    config = SGD | settings | {"parallel": {"strategy": "fsdp2"}}
    gang = launcher.train(
        TASK, f"--config={json.dumps(config)}", world=2, DDP_CHECKPOINT_DIR=str(tmp_path)
    )
    alone = trained(**settings)
    assert gang.wait() == [0, 0], gang.err(0)
    found = load_file(max(tmp_path.glob("step-*")) / FILES[0])
    for name, weight in alone.learner.model.state_dict().items():
        assert weight.allclose(found[name], atol=1e-6, rtol=0), name


def test_zero1_owners_are_balanced_and_equal_on_all_ranks() -> None:
    assert owners([10, 1, 9, 1, 1], 2) == [0, 1, 1, 0, 1]
    assert owners([5], 4) == [0]
    loads = [0, 0, 0]
    sizes = [7, 7, 7, 3, 3, 3, 1, 1, 1]
    for size, owner in zip(sizes, owners(sizes, 3), strict=True):
        loads[owner] += size
    assert loads == [11, 11, 11]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(2, 2)
        self.acts = nn.Sequential(nn.ReLU(), nn.ReLU())


def test_fsdp2_blocks_are_the_outermost_repeated_modules_without_shared_weights() -> None:
    model = Shared()
    assert repeated_blocks(model) == list(model.blocks)
    first = model.blocks[0]
    assert isinstance(first, nn.Sequential)
    linear = first[0]
    assert isinstance(linear, nn.Linear)
    model.head.weight = linear.weight
    assert repeated_blocks(model) == list(model.blocks)[1:]
    model.blocks.append(model.blocks[2])
    assert repeated_blocks(model) == [model.blocks[1]]


def test_activation_checkpointing_changes_no_result() -> None:
    gpt = {"layers": 2, "width": 16, "context": 8, "max_chars": 4000, "dropout": 0.1}
    settings: dict[str, Any] = {"task": gpt, "global_batch": 4, "max_steps": 3}
    calls: list[int] = []
    runs = []
    for on in (False, True):
        run = opened("ddp_trainer.tasks.gpt:build", activation_checkpointing=on, **settings)
        (block, _) = repeated_blocks(run.learner.model)
        (linear, *_) = (part for part in block.modules() if isinstance(part, nn.Linear))
        linear.register_forward_hook(lambda *_: calls.append(1))
        calls.clear()
        loop(run)
        runs.append((run, len(calls)))
    (plain, once), (lean, twice) = runs
    assert twice == 2 * once
    assert distance(plain.learner.model, lean.learner.model) == 0.0


@pytest.mark.parametrize(
    ("task", "sentence"),
    [({}, "needs a model with repeated blocks"), ({"blocks": True}, "with BatchNorm in the")],
)
def test_activation_checkpointing_refuses_a_model_without_repeated_blocks(
    task: Any, sentence: str
) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.BatchNorm1d(2)) for _ in range(2 * bool(task))))
    with pytest.raises(InputError, match=sentence):
        prepare(model, resolve({"activation_checkpointing": True}), torch.device("cpu"))


def test_sync_batch_norm_is_refused_without_cuda() -> None:
    with pytest.raises(InputError, match="sync_batch_norm needs CUDA"):
        opened(sync_batch_norm=True)


def test_channels_last_changes_the_layout_and_keeps_parameter_names() -> None:
    run = opened("ddp_trainer.tasks.miniresnet:build", channels_last=True)
    weight = run.learner.model.get_parameter("stages.0.conv1.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.zeros(2, 3, 4, 4)
    (seen,) = next(iter(run.learner.model._forward_pre_hooks.values()))(None, (images,))
    assert seen.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_compiled_model_keeps_its_parameter_names_and_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[nn.Module] = []
    options: list[dict[str, Any]] = []
    original = nn.Module.compile

    def without_inductor(self: nn.Module, **settings: Any) -> None:
        compiled.append(self)
        options.append(settings)
        original(self, backend="aot_eager", dynamic=settings["dynamic"])

    monkeypatch.setattr(nn.Module, "compile", without_inductor)
    monkeypatch.setattr(building, "check_compiler", lambda _: None)
    plain = trained(max_steps=3, global_batch=10)
    fast = trained(max_steps=3, global_batch=10, compile=True)
    assert compiled == [fast.learner.model]
    assert options == [{"dynamic": None, "mode": "default"}]
    assert plain.learner.model.state_dict().keys() == fast.learner.model.state_dict().keys()
    assert distance(plain.learner.model, fast.learner.model) < 1e-6
