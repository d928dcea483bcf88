"""Buffers that the loss changes follow `parallel.buffers`, and a resumed run keeps their bits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.errors import InputError
from ddp_trainer.numerics.buffers import FROZEN_BYTES, BufferCopy, BufferShapes, saved_slots
from ddp_trainer.run.saving import save
from ddp_trainer.step import train_step
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import opened, trained

TASK = "--task=buffer_tasks:build"
BASE = {"epochs": 2, "global_batch": 6, "checkpoint": {"every_steps": 5}}
SAMPLES = {"samples": 37, "dropout": 0.3, "noise": 0.1}


def config(parallel: dict[str, Any], **task: Any) -> str:
    return f"--config={json.dumps({**BASE, 'parallel': parallel, 'task': {**SAMPLES, **task}})}"


def newest(folder: Path) -> dict[str, bytes]:
    files = max(folder.glob("step-*")).glob("*.safetensors")
    return {path.name: path.read_bytes() for path in files}


def tensors(folder: Path, file: str = "model.safetensors") -> dict[str, Tensor]:
    return load_file(max(folder.glob("step-*")) / file)


LIVE = [
    "first.channels.norm.num_batches_tracked",
    "first.channels.norm.running_mean",
    "first.channels.norm.running_var",
    "first.codebook.codes",
    "first.codebook.size",
    "first.normalizer.mean",
    "first.normalizer.passes",
    "first.normalizer.seen",
    "first.queue.items",
    "first.queue.place",
]
CASES = [
    (2, {}),
    (3, {"buffers": "average"}),
    (2, {"buffers": "per_rank"}),
    pytest.param(2, {"strategy": "zero1"}, marks=pytest.mark.sweep),
    pytest.param(2, {"strategy": "fsdp2"}, marks=pytest.mark.sweep),
    pytest.param(2, {"local_sgd": {"period": 3, "start_step": 2}}, marks=pytest.mark.sweep),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "parallel"), CASES, ids=json.dumps)
def test_killed_run_ends_with_the_bits_of_an_uninterrupted_one(
    launcher: Launcher, tmp_path: Path, world: int, parallel: dict[str, Any]
) -> None:
    # With fsdp2 a frozen parameter is split, so that only buffers can be live.
    task = {"kind": "normalizer"} if parallel.get("strategy") == "fsdp2" else {}
    settings = config(parallel, **task)
    whole = launcher.train(TASK, settings, world=world, DDP_CHECKPOINT_DIR=str(tmp_path / "a"))
    broken = {"DDP_CHECKPOINT_DIR": str(tmp_path / "b")}
    die = ["--task.die_after=8", "--task.die_rank=1"]
    assert launcher.train(TASK, settings, *die, world=world, **broken).wait()[1] == -9
    last = launcher.train(TASK, settings, world=world, **broken)
    assert last.wait() == [0] * world, last.err(0)
    assert whole.wait() == [0] * world, whole.err(0)
    assert [event["step"] for event in last.events("resume")] == [5]
    assert newest(tmp_path / "a") == newest(tmp_path / "b")
    ends = [gang.events("summary")[0]["metrics"] for gang in (whole, last)]
    assert ends[0] == ends[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel", "reductions", "others"),
    [
        ("none", {}, 1, []),
        ("all", {"buffers": "broadcast"}, 1, ["gloo:broadcast"]),
        ("all", {"buffers": "average"}, 2, ["gloo:broadcast"]),
        ("all", {"buffers": "per_rank"}, 1, []),
    ],
)
def test_buffer_policy_costs_one_collective_and_makes_buffers_equal(
    launcher: Launcher,
    kind: str,
    parallel: dict[str, Any],
    reductions: int,
    others: list[str],
) -> None:
    settings = {"path": TASK.removeprefix("--task="), "global_batch": 8, "micro_batch": 2}
    settings |= {"parallel": parallel, "task": {"kind": kind}}
    gang = launcher.call("probes:profile_steady_step", settings, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (counts,) = gang.events("probe")
    assert (counts["reductions"], counts["other"], counts["syncs"]) == (reductions, others, 0)
    assert (counts["buffers"] > 0) == (parallel.get("buffers") == "per_rank")
    notes = [event["message"] for event in gang.events("note")]
    assert len(notes) == (kind == "all")
    for note in notes:
        assert note.startswith(f'training changes {len(LIVE)} buffers, first "{LIVE[0]}": ')
        assert note.endswith(f"(parallel.buffers is {parallel['buffers']})")


@pytest.mark.slow
def test_per_rank_buffers_are_dropped_at_another_world_size(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path / "a")}
    settings = config({"buffers": "per_rank"})
    first = launcher.train(TASK, settings, "--max_steps=3", world=2, **folder)
    assert first.wait() == [0, 0], first.err(0)
    saved, model = tensors(tmp_path / "a", "buffers.safetensors"), tensors(tmp_path / "a")
    assert sorted(saved) == [f"{rank}/{name}" for rank in range(2) for name in LIVE]
    assert all(saved[f"0/{name}"].equal(model[name]) for name in LIVE)
    assert not saved["1/first.queue.items"].equal(model["first.queue.items"])
    other = launcher.train(TASK, settings, "--max_steps=4", world=3, **folder)
    assert other.wait() == [0] * 3, other.err(0)
    (warning,) = [event["message"] for event in other.events("warning")]
    assert warning == (
        "the checkpoint has the buffers of each of 2 ranks (parallel.buffers was per_rank), but now"
        " there are 3 ranks: all ranks start with those of one rank"
    )


@pytest.mark.slow
def test_buffers_saved_by_one_rank_are_given_to_all_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path / "a")}
    settings = config({"buffers": "per_rank"})
    first = launcher.train(TASK, settings, "--max_steps=3", world=1, **folder)
    assert first.wait() == [0], first.err(0)
    assert not (max((tmp_path / "a").glob("step-*")) / "buffers.safetensors").exists()
    other = launcher.train(TASK, settings, "--max_steps=4", world=2, **folder)
    assert other.wait() == [0, 0], other.err(0)
    (warning,) = [event["message"] for event in other.events("warning")]
    assert warning == (
        "the checkpoint has the buffers of one rank, but now there are 2 ranks (parallel.buffers is"
        " per_rank): all ranks start with these buffers"
    )


@pytest.mark.slow
def test_buffer_that_begins_to_change_later_is_detected_at_a_checkpoint(
    launcher: Launcher, tmp_path: Path
) -> None:
    settings = config({}, kind="late")
    gang = launcher.train(TASK, settings, world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [0, 0], gang.err(0)
    (warning,) = [event["message"] for event in gang.events("warning")]
    assert warning == (
        "the loss began to change 3 buffers after the first update, first"
        ' "first.late.mean"; from now on parallel.buffers applies to them'
    )
    state = json.loads((max(tmp_path.glob("step-*")) / "state.json").read_text())
    assert state["live_buffers"] == ["first.late.mean", "first.late.passes", "first.late.seen"]


@pytest.mark.slow
def test_buffer_that_changes_its_shape_is_refused(launcher: Launcher) -> None:
    gang = launcher.train(TASK, config({}, grows=True), world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0).startswith('task: the loss changes the shape of buffer "still" from (4,) to')
    assert len(gang.err(0).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_sparse_buffer_is_refused_in_one_sentence(launcher: Launcher, world: int) -> None:
    arguments = ["--task=model_mistakes:build", "--task.name=sparse_buffer", "--max_steps=1"]
    gang = launcher.train(*arguments, world=world)
    assert gang.wait() == [2] * world
    assert gang.err(0).startswith('task: the buffer "middle.edges" has the layout torch.sparse_coo')
    assert len(gang.err(0).splitlines()) == 1


def test_buffer_of_another_shape_is_refused_before_it_is_saved(tmp_path: Path) -> None:
    folder = {"checkpoint": {"directory": str(tmp_path)}}
    task = {"name": "buffer_that_grows"}
    run = trained("model_mistakes:build", global_batch=8, max_steps=2, task=task, **folder)
    with pytest.raises(InputError, match=r'shape of buffer "middle.seen" from \(0,\) to \(16,\)'):
        save(run)
    assert list(tmp_path.glob("step-*")) == []


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_skipped_update_leaves_no_trace_in_buffers(policy: str) -> None:
    # Each update has two micro-batches, and the loss of one sample is NaN.
    task = {"nan_sample": 7, "batch_norm": True}
    nonfinite = {"policy": policy}
    run = opened(
        "buffer_tasks:build", task=task, global_batch=10, micro_batch=5, nonfinite=nonfinite
    )
    names = [*LIVE, "inner.norm.num_batches_tracked", "inner.norm.running_mean"]
    flags, changed = [], []
    for step, update in enumerate(by_update(on_device(run.train_loader, run.learner.device))):
        before = {name: run.learner.model.state_dict()[name].clone() for name in names}
        train_step(run.learner, update, step, 1.0)
        after = run.learner.model.state_dict()
        flags.append(run.learner.guard.nonfinite.item())
        changed.append([name for name in names if not after[name].equal(before[name])])
    assert sum(flags) == 1
    skipped = flags.index(1.0)
    assert changed[skipped] == ([] if policy == "skip" else changed[skipped - 1])
    expected = {"first.normalizer.passes", "first.codebook.codes", "first.queue.place", *names[-2:]}
    assert expected <= {*changed[skipped - 1]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel", [{}, {"strategy": "fsdp2"}, {"local_sgd": {"period": 3}}], ids=json.dumps
)
def test_ranks_count_no_pass_of_a_skipped_update_in_their_buffers(
    launcher: Launcher, tmp_path: Path, parallel: dict[str, Any]
) -> None:
    task = {"kind": "normalizer", "nan_sample": 7}
    settings = {"epochs": 1, "global_batch": 10, "parallel": {"buffers": "per_rank"} | parallel}
    document = json.dumps(settings | {"task": task})
    gang = launcher.train(TASK, f"--config={document}", world=2, DDP_CHECKPOINT_DIR=str(tmp_path))
    assert gang.wait() == [0, 0], gang.err(0)
    saved = tensors(tmp_path, "buffers.safetensors")
    passes = sorted(int(saved[f"{rank}/first.normalizer.passes"]) for rank in range(2))
    # With local SGD only the rank with the NaN skips one of its 5 updates.
    assert passes == ([4, 5] if "local_sgd" in parallel else [4, 4])


def test_copy_restores_buffers_of_any_type_where_the_flag_is_set() -> None:
    model = nn.Module()
    numbers = [torch.tensor(3), torch.tensor([True, False]), torch.ones(2, 3, dtype=torch.float64)]
    numbers += [
        torch.arange(6.0).view(2, 3).t(),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(0),
    ]
    numbers += [torch.tensor([1j]), torch.tensor([1, 2, 3], dtype=torch.int8)]
    for index, number in enumerate(numbers):
        model.register_buffer(f"b{index}", number.clone())
    slots = saved_slots(model)
    copy = BufferCopy(slots, torch.device("cpu"))
    for slot in slots:
        slot.tensor.zero_()
    model.b1 = torch.tensor([False, False])  # A pass may also replace a tensor.
    copy.restore_if(torch.zeros(()))
    assert not any(bool(slot.tensor.any()) for slot in slots)
    copy.restore_if(torch.ones(()))
    assert all(slot.tensor.equal(old) for slot, old in zip(slots, numbers, strict=True))


@pytest.mark.parametrize("large", [False, True])
def test_large_frozen_weights_are_not_copied_at_each_update(large: bool) -> None:
    model = nn.Module()
    # On this device tensors take no memory.
    weight = torch.empty(FROZEN_BYTES + large, dtype=torch.uint8, device="meta")
    own = type("Own", (nn.Module,), {"__module__": "own"})()
    own.weight = nn.Parameter(weight, requires_grad=False)
    model.own, model.norm = own, nn.BatchNorm1d(3)
    found = [slot.name for slot in BufferShapes(model).slots(None)]
    assert ("own.weight" in found) == (not large)
    assert "norm.running_mean" in found
