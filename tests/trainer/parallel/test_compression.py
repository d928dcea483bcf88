"""Tests of compressed gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from ddp_trainer.parallel.compression import communication_share
from ddp_trainer.parallel.error_feedback import ErrorFeedback
from tests.trainer.numerics.guard_probes import PIXELS
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.runs import SGD

TASK = "--task=sample_tasks:build"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(max(folder.glob("step-*")) / "model.safetensors")


def difference(one: Path, other: Path) -> float:
    ours, theirs = weights(one), weights(other)
    return max(float((ours[key] - theirs[key]).abs().max()) for key in ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "least", "most"),
    [
        ({"name": "fp16"}, 1e-9, 1e-3),
        ({"name": "powersgd", "start_step": 2}, 1e-5, 0.2),
        ({"name": "fp16", "adaptive": True, "share": 0.99}, 0.0, 0.0),
    ],
    ids=json.dumps,
)
def test_compressed_training_stays_close_to_plain_training(
    launcher: Launcher, tmp_path: Path, compression: dict[str, Any], least: float, most: float
) -> None:
    config = SGD | {"global_batch": 8, "max_steps": 20}
    for name, parallel in (("plain", {}), ("compressed", {"compression": compression})):
        document = json.dumps(config | {"parallel": parallel})
        gang = launcher.train(
            TASK, f"--config={document}", world=2, DDP_CHECKPOINT_DIR=str(tmp_path / name)
        )
        assert gang.wait() == [0, 0], gang.err(0)
    assert least <= difference(tmp_path / "plain", tmp_path / "compressed") <= most


@pytest.mark.slow
def test_powersgd_scales_updates_correctly_in_short_batches_and_after_a_skip(
    launcher: Launcher,
) -> None:
    # 514 samples: the last update of an epoch has 2 samples, all others have 64. Samples count 1
    # to 4 times. The loss of sample 17 is NaN, so one update of each epoch is skipped.
    plain = SGD | {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False},
        "global_batch": 64,
        "epochs": 2,
        "task": {"samples": 514, "uneven": True, "nan_sample": 17},
    }
    compression = {"compression": {"name": "powersgd", "start_step": 2}}
    gangs = [
        launcher.call("probes:measure_updates", config, world=2)
        for config in (plain, plain | {"parallel": compression})
    ]
    sizes = []
    for gang in gangs:
        assert gang.wait() == [0, 0], gang.err(0)
        (probe,) = gang.events("probe")
        sizes.append(probe["sizes"])
    assert sizes[0].count(0.0) == 2
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)
    assert sizes[1] != sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp16", "powersgd"])
def test_compression_neither_rounds_nor_overflows_the_loss_count(
    launcher: Launcher, name: str
) -> None:
    compression = {"name": name, "start_step": 2}
    config = {"global_batch": 4, "max_steps": 6, "parallel": {"compression": compression}}
    gang = launcher.call("tests.trainer.numerics.guard_probes:report_counts", config, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (probe,) = gang.events("probe")
    assert probe["counts"] == [PIXELS] * 6
    assert all(size > 0 for size in probe["sizes"])
    assert not probe["flagged"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reductions"), [("none", 1), ("fp16", 2)])
def test_rounding_compression_costs_one_more_reduction_for_the_count(
    launcher: Launcher, name: str, reductions: int
) -> None:
    config = {"global_batch": 8, "parallel": {"compression": {"name": name}}}
    gang = launcher.call("probes:profile_steady_step", config, world=2)
    assert gang.wait() == [0, 0], gang.err(0)
    (counts,) = gang.events("probe")
    assert (counts["buckets"], counts["reductions"], counts["syncs"]) == (1, reductions, 0)


def test_error_feedback_neither_loses_nor_repeats_gradient() -> None:
    power = powerSGD_hook.PowerSGDState(process_group=None)
    feedback = ErrorFeedback(power, torch.device("cpu"), count_scale=0.5)
    generator = torch.Generator().manual_seed(0)
    applied, true = torch.zeros(5), torch.zeros(5)
    counts = [(8, 20.0), (8, 17.0), (2, 9.0), (8, 25.0), (1, 1.0), (3, 0.0), (8, 23.0)]
    for update, (samples, count) in enumerate(counts):
        gradient = torch.randn(5, generator=generator) * count
        loss_scale = 2.0**update
        skipped = update == 3
        feedback.begin(samples, lambda value, scale=loss_scale: value * scale)  # type: ignore[misc]
        sent = gradient * 0.5 * loss_scale + power.error_dict.get(0, torch.zeros(5))
        received = sent * torch.tensor([1.0, 0.5, 0.0, 1.0, 0.0])
        power.error_dict[0] = sent * float("nan") if skipped else sent - received
        feedback.finish(torch.tensor([0.5 * count]), torch.tensor(float(skipped)))
        if count and not skipped:
            true += gradient / count
            applied += received / (0.5 * count * loss_scale)
    assert (applied + power.error_dict[0]).allclose(true, atol=1e-5)
    assert not applied.allclose(true, atol=1e-2)


@pytest.mark.slow
def test_adaptive_compression_starts_when_the_measured_share_is_reached(
    launcher: Launcher, tmp_path: Path
) -> None:
    parallel = {"compression": {"name": "fp16", "adaptive": True, "share": 1e-9}}
    config = json.dumps({"parallel": parallel, "global_batch": 8, "log": {"every_steps": 5}})
    arguments = [TASK, f"--config={config}"]
    folder = {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    first = launcher.train(*arguments, "--max_steps=20", world=2, **folder)
    assert first.wait() == [0, 0]
    assert [note.partition(" step")[0] for note in compression_notes(first)] == [
        "compression: fp16 from"
    ]
    assert json.loads((max(tmp_path.glob("step-*")) / "state.json").read_text())["compression_on"]
    resumed = launcher.train(*arguments, "--max_steps=30", world=2, **folder)
    assert resumed.wait() == [0, 0]
    assert compression_notes(resumed) == []


def compression_notes(gang: Gang) -> list[str]:
    messages = [event["message"] for event in gang.events("note")]
    return [message for message in messages if message.startswith("compression")]


def test_communication_share_is_zero_without_measurements_by_torch() -> None:
    assert communication_share(nn.Linear(1, 1)) == 0.0


@pytest.mark.slow
def test_bf16_compression_raises_an_error_on_the_cpu(launcher: Launcher) -> None:
    gang = launcher.train(TASK, "--parallel.compression.name=bf16", world=2)
    assert gang.wait() == [2, 2]
    assert gang.err(0) == ("config: parallel.compression.name bf16 needs CUDA; use fp16 on CPU\n")
