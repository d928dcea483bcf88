"""Averaged weights, compression, local SGD, weights to begin with, garbage."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.errors import InputError
from ddp_trainer.parallel.compression import communication_share
from ddp_trainer.run.garbage import Collector
from ddp_trainer.step import train_step
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import SGD, opened, trained

TASK = "--task=sample_tasks:build"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(max(folder.glob("step-*")) / "model.safetensors")


def apart(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    return max(float((ours[key] - theirs[key]).abs().max()) for key in ours)


@pytest.mark.parametrize("warmup", [True, False])
def test_the_average_is_the_recurrence(warmup: bool) -> None:
    run = opened(global_batch=10, ema={"decay": 0.6, "warmup": warmup})
    assert run.learner.ema
    expected = [param.detach().clone() for param in run.learner.model.parameters()]
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(4):
        train_step(run.learner, next(updates), step, 1.0)
        decay = min(0.6, (1 + step) / (10 + step)) if warmup else 0.6
        for average, param in zip(expected, run.learner.model.parameters(), strict=True):
            average.mul_(decay).add_(param.detach(), alpha=1 - decay)
    found = run.learner.ema.state().values()
    assert all(a.allclose(b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def test_evaluation_uses_the_average_and_gives_the_weights_back() -> None:
    settings: dict[str, Any] = {"global_batch": 10, "epochs": 2}
    plain = trained(**settings)
    plain.evaluate()
    found = {}
    for evaluate in (True, False):
        run = trained(ema={"decay": 0.9, "evaluate": evaluate}, **settings)
        before = [param.clone() for param in run.learner.model.parameters()]
        run.evaluated_step = -1
        run.evaluate()
        found[evaluate] = run.metrics["loss"]
        assert all(a.equal(b) for a, b in zip(before, run.learner.model.parameters(), strict=True))
    assert found[False] == plain.metrics["loss"]
    assert found[True] != plain.metrics["loss"]


@pytest.mark.parametrize(
    ("compression", "least", "most"),
    [
        ({"name": "fp16"}, 1e-9, 1e-3),
        ({"name": "powersgd", "start_step": 2}, 1e-5, 0.2),
        ({"name": "fp16", "adaptive": True, "share": 0.99}, 0.0, 0.0),
    ],
    ids=json.dumps,
)
def test_compression_stays_near(
    launcher: Launcher, tmp_path: Path, compression: dict[str, Any], least: float, most: float
) -> None:
    config = SGD | {"global_batch": 8, "max_steps": 20}
    for name, parallel in (("plain", {}), ("compressed", {"compression": compression})):
        document = json.dumps(config | {"parallel": parallel})
        gang = launcher.train(
            TASK, f"--config={document}", world=2, DDP_CHECKPOINT_DIR=str(tmp_path / name)
        )
        assert gang.wait() == [0, 0], gang.err(0)
    assert least <= apart(tmp_path / "plain", tmp_path / "compressed") <= most


def test_adaptive_compression_is_switched_on_by_what_is_measured(
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
    again = launcher.train(*arguments, "--max_steps=30", world=2, **folder)
    assert again.wait() == [0, 0]
    assert again.events("note") == []


def test_the_share_is_nothing_where_torch_does_not_tell() -> None:
    assert communication_share(nn.Linear(1, 1)) == 0.0


@pytest.mark.slow
def test_bf16_compression_is_refused_on_the_cpu(launcher: Launcher) -> None:
    gang = launcher.train(TASK, "--parallel.compression.name=bf16", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0) == ("config: parallel.compression.name bf16 needs CUDA; the CPU has fp16\n")


def test_ranks_are_one_model_after_a_period(launcher: Launcher) -> None:
    config = {"global_batch": 4, "parallel": {"local_sgd": {"period": 3, "start_step": 2}}}
    gang = launcher.call("probes:local_sgd", SGD | config, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    found = [event["apart"] for event in gang.events("probe")]
    # Updates 0 and 1 are everybody's; 2 to 4 and 5 to 7 are periods.
    assert [value == 0 for value in found] == [True, True, False, False, True, False, False, True]


def saved_weights(folder: Path) -> Path:
    run = trained(global_batch=10, checkpoint={"directory": str(folder)})
    run.save()
    return max(folder.glob("step-*"))


def test_a_run_begins_with_given_weights(tmp_path: Path) -> None:
    checkpoint = saved_weights(tmp_path / "first")
    given = load_file(checkpoint / "model.safetensors")
    for source in (tmp_path / "first", checkpoint, checkpoint / "model.safetensors"):
        run = opened(init_from=str(source))
        assert run.position.step == 0
        assert all(value.equal(given[key]) for key, value in run.learner.model.state_dict().items())
        assert not run.learner.optimizer.state_dict()["state"][0]["momentum_buffer"].any()


def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = load_file(saved_weights(tmp_path) / "model.safetensors")
    given["head.bias"] = torch.zeros(7)
    given["extra"] = given.pop("head.weight")
    file = tmp_path / "given.safetensors"
    save_file(given, file)
    sentence = (
        f"init_from {file}: 4 tensors fit, 1 missing in the file (head.weight),"
        " 1 unknown to the model (extra), 1 of another shape (head.bias)"
    )
    with pytest.raises(InputError) as caught:
        opened(init_from=str(file))
    assert str(caught.value) == f"config: {sentence}"
    run = opened(init_from=str(file), init_strict=False)
    assert run.learner.model.state_dict()["inner.weight"].equal(given["inner.weight"])
    assert sentence in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_no_weights_is_refused_on_every_rank(launcher: Launcher, tmp_path: Path) -> None:
    gang = launcher.train(TASK, f"--init_from={tmp_path / 'none'}", world=2)
    assert gang.wait() == [2, 2]
    assert "init_from must be a safetensors file, a checkpoint or a run's directory" in gang.err(0)
    (tmp_path / "text").write_text("no tensors")
    gang = launcher.train(TASK, f"--init_from={tmp_path / 'text'}", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0).startswith("config: init_from: cannot read")


def test_a_checkpoint_of_the_run_comes_before_weights_to_begin_with(tmp_path: Path) -> None:
    other = saved_weights(tmp_path / "other")
    run = trained(seed=1, global_batch=10, checkpoint={"directory": str(tmp_path / "run")})
    run.save()
    settings: dict[str, Any] = {"checkpoint": {"directory": str(tmp_path / "run")}, "epochs": 2}
    again = opened(seed=1, global_batch=10, init_from=str(other), **settings)
    assert again.position.step == run.position.step
    own = run.learner.model.state_dict()
    assert all(own[key].equal(v) for key, v in again.learner.model.state_dict().items())


def test_garbage_is_collected_at_stated_updates_only() -> None:
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with Collector(4) as collector:
            for step in range(1, 9):
                collector.updated(step)
                heap: list[Any] = [[] for _ in range(10_000)]
                assert heap
            inside = list(collections)
    finally:
        gc.callbacks.remove(note)
    assert inside == [1, 1]
    assert gc.isenabled()


def test_deterministic_algorithms_are_a_switch() -> None:
    try:
        opened(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        opened()
    assert not torch.are_deterministic_algorithms_enabled()
