"""Tests of the rule and the note for each part of the state that depends on the number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from ddp_trainer.config.settings import resolve
from ddp_trainer.parallel.error_feedback import ErrorFeedback
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.runs import SGD

TASK = "--task=sample_tasks:build"
NORM = {"batch_norm": True, "samples": 60}
POWERSGD = {"compression": {"name": "powersgd", "start_step": 2}}


def tensors(folder: Path, file: str) -> dict[str, Tensor]:
    return load_file(max(folder.glob("step-*")) / f"{file}.safetensors")


def messages(gang: Gang, kind: str) -> list[str]:
    """Return the messages, except for those about the interval of checkpoints."""
    found = [event["message"] for event in gang.events(kind)]
    return [message for message in found if "checkpoint.every_seconds: auto" not in message]


def trained(
    launcher: Launcher, folder: Path, world: int | None, config: dict[str, Any], steps: int
) -> Gang:
    over = {"max_steps": steps, "device": "cpu", "checkpoint": {"directory": str(folder)}}
    gang = launcher.train(TASK, f"--config={json.dumps(SGD | config | over)}", world=world)
    assert gang.wait(120) == [0] * (world or 1), gang.err(0)
    return gang


class Feedbacks:
    """The error feedback of some ranks, with a compression that keeps half of the numbers."""

    def __init__(self, world: int) -> None:
        self.powers = [PowerSGDState(process_group=None) for _ in range(world)]
        self.ranks = [ErrorFeedback(p, torch.device("cpu"), 1 / world) for p in self.powers]

    def update(self, gradients: Tensor, counts: Tensor, kept: Tensor) -> Tensor:
        """Reduce gradients of sums, one row per rank, and return the gradient of the mean."""
        for rank in self.ranks:
            rank.begin(10, lambda value: value)
        rows = zip(gradients, self.powers, strict=True)
        sent = torch.stack([row + p.error_dict.get(0, torch.zeros(6)) for row, p in rows])
        received = sent.mean(0) * kept
        for row, power, rank in zip(sent, self.powers, self.ranks, strict=True):
            power.error_dict[0] = row - received
            rank.finish(counts.mean().view(1), torch.zeros(()))
        return received / counts.mean()

    def residues(self) -> list[Tensor]:
        return [power.error_dict[0] for power in self.powers]

    def resized(self, world: int) -> "Feedbacks":
        """Return the error feedback of other ranks, restored as a checkpoint is."""
        other, saved = Feedbacks(world), self.residues()
        for rank in other.ranks:
            rank.rate = self.ranks[0].rate
            for residue in saved:
                rank.add(0, residue, 1 / len(saved))
        return other


def test_error_feedback_loses_and_repeats_no_gradient_over_resizes() -> None:
    draw = torch.Generator().manual_seed(0)
    applied, true = torch.zeros(6), torch.zeros(6)
    feedback = Feedbacks(4)
    for world in (4, 3, 1, 2, 4):
        feedback = feedback.resized(world) if true.any() else feedback
        for _ in range(3):
            gradients = torch.randn(world, 6, generator=draw) * 10
            counts = torch.full((world,), 20 / world)
            kept = (torch.rand(6, generator=draw) > 0.5).float()
            applied += feedback.update(gradients, counts, kept)
            true += gradients.sum(0) / counts.sum()
    owed = torch.stack(feedback.residues()).mean(0)
    assert (applied + owed).allclose(true, atol=1e-5)
    assert owed.abs().max() > 0.1


@pytest.mark.slow
def test_ranks_start_with_the_mean_of_the_saved_residues_and_with_the_same_matrices(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = {"global_batch": 12, "parallel": POWERSGD}
    trained(launcher, tmp_path, 2, config, 4)
    saved = tensors(tmp_path, "compression")
    mine = [
        {n.rpartition("/")[2]: t for n, t in saved.items() if n.startswith(f"residue/{rank}/")}
        for rank in range(2)
    ]
    assert mine[0].keys() == mine[1].keys() != set()
    assert not any(mine[0][index].equal(mine[1][index]) for index in mine[0])
    own = SGD | config | {"max_steps": 6, "device": "cpu"}
    for world in (1, 2, 3):
        over = own | {"checkpoint": {"directory": str(tmp_path)}}
        gang = launcher.call("resize_probes:report_residues", over, world=world)
        assert gang.wait(60) == [0] * world, gang.err(0)
        for rank in range(world):
            probe = json.loads(gang.out(rank).splitlines()[-1])
            shared, found = probe["shared"], probe["residues"]
            assert {name.partition("/")[0] for name in shared} == {"p", "q", "rate"}
            assert all(torch.tensor(shared[name]).equal(saved[name]) for name in shared)
            assert found.keys() == mine[0].keys()
            for index, numbers in found.items():
                mean = (mine[0][index] + mine[1][index]) / 2
                expected = mine[rank][index] if world == 2 else mean
                assert torch.tensor(numbers).allclose(expected, atol=1e-7)


@pytest.mark.slow
def test_notes_of_a_resize_name_residues_that_are_averaged_or_dropped(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = {"global_batch": 12, "micro_batch": 3, "parallel": POWERSGD}
    trained(launcher, tmp_path, 2, config, 3)
    (note,) = messages(trained(launcher, tmp_path, 3, config, 5), "note")
    assert note == (
        "3 ranks instead of 2: each rank starts with the mean of the saved residues of powersgd,"
        " so their mean over the ranks stays the same"
    )
    assert messages(trained(launcher, tmp_path, 3, config, 6), "note") == []
    dropped = trained(launcher, tmp_path, 3, config | {"parallel": {}}, 7)
    assert messages(dropped, "note") == []
    (warning,) = messages(dropped, "warning")
    assert warning == (
        "the checkpoint has residues of powersgd, but this attempt does not use powersgd: they are"
        " dropped, so the weights miss what powersgd had not sent yet"
    )


@pytest.mark.slow
def test_notes_of_a_resize_name_results_that_depend_on_the_number_of_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    task = {"dropout": 0.3, **NORM}
    config = {"global_batch": 12, "precision": "fp16", "task": task}
    assert messages(trained(launcher, tmp_path, 3, config, 3), "note") == []
    resized = trained(launcher, tmp_path, 2, config, 5)
    dropout, norm, memory = messages(resized, "note")
    assert dropout == (
        "2 ranks instead of 3: dropout draws other numbers than it would have drawn without the"
        " change, because each rank draws its own"
    )
    assert norm == (
        "2 ranks instead of 3: BatchNorm normalises other parts of each batch, because each rank"
        " normalises its own samples (sync_batch_norm is false)"
    )
    assert memory == (
        "2 ranks instead of 3: a forward pass has up to 6 samples instead of 4; set micro_batch to"
        " limit the memory of a pass"
    )
    # The loss scale is one number, which continues.
    state = json.loads((max(tmp_path.glob("step-*")) / "state.json").read_text())
    assert state["scaler"]["_growth_tracker"] == 5


@pytest.mark.slow
def test_saved_running_statistics_are_the_mean_of_the_ranks_and_each_rank_starts_with_them(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = SGD | {"global_batch": 12, "task": NORM, "device": "cpu"}
    saved: Tensor | None = None
    for steps, world in ((1, 2), (2, 3)):
        over = {"max_steps": steps, "checkpoint": {"directory": str(tmp_path)}}
        gang = launcher.call("resize_probes:report_norms", config | over, world=world)
        assert gang.wait(60) == [0] * world, gang.err(0)
        lines = [json.loads(gang.out(rank).splitlines()[-1]) for rank in range(world)]
        first, own, after = torch.tensor([line["means"] for line in lines]).unbind(1)
        if saved is not None:
            assert all(row.equal(saved) for row in first)
        assert not own[0].equal(own[1])
        assert after.allclose(own.mean(0).expand_as(after), atol=1e-7)
        saved = tensors(tmp_path, "model")["norm.running_mean"]
        assert all(row.equal(saved) for row in after)


@pytest.mark.slow
def test_batch_norm_of_each_rank_makes_the_weights_depend_on_the_number_of_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = {"global_batch": 12, "precision": "fp64", "task": NORM}
    weights = []
    for world in (None, 2):
        trained(launcher, tmp_path / str(world), world, config, 4)
        weights.append(tensors(tmp_path / str(world), "model")["head.weight"])
    assert float((weights[0] - weights[1]).abs().max()) > 1e-4


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_update_without_micro_batch_is_a_single_forward_pass_on_each_rank(world: int) -> None:
    config = resolve({"global_batch": 12})
    assert config.batch_split(world).accumulation == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_synchronized_batch_norm_makes_the_weights_independent_of_the_number_of_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    config = {
        "global_batch": 12,
        "precision": "fp32",
        "sync_batch_norm": True,
        "task": NORM,
    }
    found = []
    for world in (1, 3):
        folder = tmp_path / str(world)
        over = {"max_steps": 4, "device": "cuda", "checkpoint": {"directory": str(folder)}}
        gang = launcher.train(TASK, f"--config={json.dumps(SGD | config | over)}", world=world)
        assert gang.wait(120) == [0] * world, gang.err(0)
        found.append(tensors(folder, "model"))
    for name, tensor in found[0].items():
        assert tensor.allclose(found[1][name], atol=1e-5, rtol=0), name
