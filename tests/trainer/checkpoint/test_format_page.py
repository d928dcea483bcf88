"""A reader that knows only docs/use/checkpoint-format.md reads what each strategy saves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import load
from tests.trainer.checkpoint.plain_reader import as_array, read_checkpoint
from tests.trainer.rank_processes import Launcher

RECORDED = Path(__file__).parent / "recorded" / "step-00000004.attempt-0"
"""A checkpoint that the code before sharded writes wrote, on two ranks."""
FILES = {"average": "ema"}
"""Name of the file of a kind of tensors, where it differs from that of the kind."""
BASE: dict[str, Any] = {
    "max_steps": 3,
    "global_batch": 10,
    "ema": {"decay": 0.9},
    "optimizer": {"name": "adamw"},
    "task": {"batch_norm": True, "eval_samples": 0},
}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"strategy": "ddp"}},
    "ddp with buffers of each rank": {"parallel": {"buffers": "per_rank"}},
    "ddp with powersgd": {"parallel": {"compression": {"name": "powersgd", "start_step": 2}}},
    "zero1": {"parallel": {"strategy": "zero1"}},
    "fsdp2": {"parallel": {"strategy": "fsdp2"}},
}


def bits(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    flat = tensor.detach().contiguous().reshape(-1)
    return tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def check_bits(found: dict[str, Any], tensors: dict[str, dict[str, torch.Tensor]]) -> None:
    """Check that a plain reader has found exactly these tensors, bit for bit."""
    for kind, expected in tensors.items():
        given = found["tensors"].get(FILES.get(kind, kind), {})
        assert {name: value[1:] for name, value in given.items()} == {
            name: bits(tensor) for name, tensor in expected.items()
        }, kind


def saved(launcher: Launcher, home: Path, world: int, **config: Any) -> tuple[Path, Any]:
    """Train and save on some ranks. Return the checkpoint, and the state that the ranks had."""
    config = BASE | {"checkpoint": {"directory": str(home / "run")}} | config
    given = {"task": "sample_tasks:build_teacher", "config": config, "state": str(home / "state")}
    gang = launcher.call("format_probes:save_and_gather", given, world=world)
    assert gang.wait(240) == [0] * world, gang.err(0)
    return max((home / "run").glob("step-*")), torch.load(home / "state")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["whole", "parts", "background"])
def test_plain_reader_finds_the_bits_of_the_ranks(
    launcher: Launcher, tmp_path: Path, case: str, way: str
) -> None:
    settings = {
        "directory": str(tmp_path / "run"),
        "part_mb": 64 if way == "whole" else 1e-4,
        "background": way == "background",
    }
    checkpoint, state = saved(launcher, tmp_path, 2, checkpoint=settings, **CASES[case])
    found = read_checkpoint(checkpoint)
    in_parts = [path.name for path in checkpoint.glob("*-00002-of-00002.safetensors")]
    assert bool(in_parts) == (way != "whole")
    assert not list(checkpoint.glob("part-*"))
    check_bits(found, state["tensors"])
    assert found["optimizer"] == json.loads(json.dumps(state["rest"]["optimizer"]))
    assert found["task"] == json.loads(json.dumps(state["rest"]["task"]))
    assert found["state"]["step"] == 3
    assert found["state"]["world_size"] == 2


def test_recorded_checkpoint_of_an_older_release_is_read_bit_for_bit() -> None:
    found = read_checkpoint(RECORDED)
    got = load.receive(RECORDED, torch.device("cpu")).snapshot
    kinds = ("model", "optimizer", "average", "task")
    tensors = {kind: dict(getattr(got, kind).items()) for kind in kinds}
    assert all(tensors.values())
    check_bits(found, tensors)
    weight = as_array(found["tensors"]["model"]["inner.weight"])
    assert weight.shape == (8, 6)
    assert torch.from_numpy(weight.copy()).equal(tensors["model"]["inner.weight"])


@pytest.mark.slow
def test_run_resumes_from_a_recorded_checkpoint(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "run" / RECORDED.name)
    config = BASE | {"max_steps": 4, "checkpoint": {"directory": str(tmp_path / "run")}}
    arguments = ["--task=sample_tasks:build_teacher", f"--config={json.dumps(config)}"]
    gang = launcher.train(*arguments, world=3)
    assert gang.wait(120) == [0, 0, 0], gang.err(0)
    assert [event["step"] for event in gang.events("resume")] == [4]


STRATEGIES = ("ddp", "zero1", "fsdp2")


@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=pytest.mark.slow if n != 2 else ()) for n in range(len(STRATEGIES))],
)
def test_state_stays_the_same_bits_on_4_2_3_and_1_ranks_of_other_strategies(
    launcher: Launcher, tmp_path: Path, first: int
) -> None:
    before: Path | None = None
    for number, world in enumerate((4, 2, 3, 1)):
        strategy = STRATEGIES[(first + number) % 3]
        checkpoint, state = saved(
            launcher,
            tmp_path,
            world,
            max_steps=number + 2,
            parallel={"strategy": strategy},
            checkpoint={
                "directory": str(tmp_path / "run"),
                "part_mb": 1e-4,
                "background": number % 2 == 1,
            },
        )
        counts = {path.stem.partition("-of-")[2] for path in checkpoint.glob("*.safetensors")}
        assert counts == {f"{world:05d}" if world > 1 else ""}
        if before is not None:
            at_start = torch.load(tmp_path / "state.start")["tensors"]
            del at_start["task"]  # The first pass after a resume changes the task's own BatchNorm.
            check_bits(read_checkpoint(before), at_start)
        check_bits(read_checkpoint(checkpoint), state["tensors"])
        before = checkpoint
