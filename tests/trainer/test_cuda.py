"""Tests that need a CUDA device."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ddp_trainer.data.loader import by_update
from ddp_trainer.data.prefetch import on_device
from ddp_trainer.observe.phases import PhaseTimer
from ddp_trainer.run.evaluating import evaluate_run
from ddp_trainer.step import train_step
from ddp_wire.contract import ExitCode
from ddp_wire.records import ask_to_leave
from tests.trainer.rank_processes import Launcher
from tests.trainer.runs import distance, opened, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA: dict[str, Any] = {"device": "cuda", "global_batch": 10, "clip_norm": 1.0}


def test_one_rank_trains_with_nccl(launcher: Launcher) -> None:
    gang = launcher.train("--task=sample_tasks:build", "--device=cuda", "--epochs=2", world=1)
    assert gang.wait() == [0], gang.err(0)
    (start,) = gang.events("start")
    assert (start["device"], start["precision"]) == ("cuda:0", "tf32")
    (note,) = [event["message"] for event in gang.events("note")]
    assert note.startswith("data.workers auto: 0 worker processes per rank, because ")


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp2"])
def test_each_strategy_resumes_with_nccl(launcher: Launcher, tmp_path: Any, strategy: str) -> None:
    arguments = ["--task=sample_tasks:build", "--device=cuda", f"--parallel.strategy={strategy}"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    for epochs in (1, 2):
        gang = launcher.train(*arguments, f"--epochs={epochs}", world=1, **folder)
        assert gang.wait() == [0], gang.err(0)
    assert gang.events("resume")


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_precisions_reach_a_similar_loss(precision: str) -> None:
    exact = trained(epochs=2, precision="fp32", **CUDA)
    rough = trained(epochs=2, precision=precision, **CUDA)
    for run in (exact, rough):
        evaluate_run(run)
    assert rough.metrics["loss"] == pytest.approx(exact.metrics["loss"], rel=0.05)


def test_cuda_computes_the_same_weights_as_the_cpu() -> None:
    on_cpu = trained(epochs=1, **(CUDA | {"device": "cpu"}))
    on_cuda = trained(epochs=1, precision="fp32", **CUDA)
    assert distance(on_cpu.learner.model, on_cuda.learner.model.cpu()) < 1e-5


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_fp16_overflow_skips_the_update_on_the_device(name: str) -> None:
    run = opened(precision="fp16", optimizer={"name": name}, **CUDA)
    before = [param.clone() for param in run.learner.model.parameters()]
    run.learner.scaler = torch.amp.GradScaler("cuda", init_scale=1e38)
    updates = by_update(on_device(run.train_loader, run.learner.device))
    train_step(run.learner, next(updates), 0, 1.0)
    after = run.learner.model.parameters()
    assert all(a.equal(b) for a, b in zip(after, before, strict=True))
    assert run.learner.totals.read()[2] == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_fifty_steady_steps_need_no_host_sync(precision: str) -> None:
    run = opened(precision=precision, epochs=20, ema={"decay": 0.9}, **(CUDA | {"global_batch": 8}))
    updates = by_update(on_device(run.train_loader, run.learner.device))
    for step in range(5):
        train_step(run.learner, next(updates), step, 1.0)
    torch.cuda.set_sync_debug_mode("error")  # A synchronization raises.
    try:
        for step in range(5, 55):
            train_step(run.learner, next(updates), step, 1.0)
        assert torch.cuda.get_sync_debug_mode() == 2
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_sync_batch_norm_replaces_batch_norm_and_keeps_the_names() -> None:
    plain = opened(task={"batch_norm": True}, **CUDA)
    synced = opened(task={"batch_norm": True}, sync_batch_norm=True, **CUDA)
    modules = [type(module) for module in synced.learner.model.modules()]
    assert nn.SyncBatchNorm in modules
    assert nn.BatchNorm1d not in modules
    assert synced.learner.model.state_dict().keys() == plain.learner.model.state_dict().keys()


def test_compiled_model_computes_the_same_weights() -> None:
    plain = trained(max_steps=5, precision="fp32", **CUDA)
    fast = trained(max_steps=5, compile=True, precision="fp32", **CUDA)
    assert distance(plain.learner.model, fast.learner.model) < 1e-5


def test_device_measures_the_phases_of_an_update() -> None:
    phases = PhaseTimer(torch.device("cuda"))
    matrix = torch.randn(2048, 2048, device="cuda")
    phases.enter("exchange")
    phases.enter("data")
    phases.enter("forward")
    for _ in range(20):
        matrix = matrix @ matrix
    phases.enter("optimizer")
    phases.enter("exchange")
    seconds = phases.read()
    assert seconds["forward"] > seconds["optimizer"] >= 0


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp2"])
def test_ranks_that_wait_for_a_hung_one_keep_their_state(
    launcher: Launcher, tmp_path: Path, strategy: str
) -> None:
    """The kernels of NCCL wait for ever, and the state is read beside them."""
    records = tmp_path / "records"
    records.mkdir()
    config = {"epochs": 3, "global_batch": 6, "parallel": {"strategy": strategy}}
    arguments = ["--task=sample_tasks:build", "--device=cuda", f"--config={json.dumps(config)}"]
    whole = launcher.train(*arguments, world=2, DDP_CHECKPOINT_DIR=str(tmp_path / "whole"))
    assert whole.wait(120) == [0, 0], whole.err(0)
    arguments.append("--checkpoint.memory=true")
    variables = {
        "DDP_CHECKPOINT_DIR": str(tmp_path / "broken"),
        "DDP_RECORDS_DIR": str(records),
    }
    hang = ["--task.die_rank=1", "--task.die_after=8", "--task.die_how=hang"]
    hung = launcher.train(*arguments, *hang, world=2, DDP_ATTEMPT="1", **variables)
    hung.wait_until(lambda: (hung.folder / "0.out").exists() and bool(hung.events("start")), 60)
    hung.wait_until(lambda: hung.sleeps(1), 60)
    ask_to_leave(records, 1)
    for rank in range(2):
        hung.signal(rank, signal.SIGTERM)
    assert hung.wait() == [ExitCode.PREEMPTED] * 2, hung.err(0)
    (step,) = {int(path.name[5:13]) for path in records.glob("step-*")}
    last = launcher.train(*arguments, world=2, DDP_ATTEMPT="2", **variables)
    assert last.wait(120) == [0, 0], last.err(0)
    assert [event["step"] for event in last.events("resume")] == [step]
    ends = [max((tmp_path / name).glob("step-*")) for name in ("whole", "broken")]
    for file in ("model.safetensors", "optimizer.safetensors"):
        one, other = (load_file(end / file) for end in ends)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file
