"""Tests of records of ranks that hold parts of the state which no other rank holds."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ddp_wire.contract import ExitCode
from ddp_wire.records import ask_to_leave
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.run.interrupted import NOISY, Folders, resumed, warnings

BASE = {
    "epochs": 3,
    "global_batch": 6,
    "checkpoint": {"every_steps": 5, "memory_every_steps": None},
}
EMA = {"ema": {"decay": 0.9}, "clip_norm": 0.5}
PARTS: dict[str, dict[str, Any]] = {
    "zero1": {"parallel": {"strategy": "zero1"}, **EMA},
    "fsdp2": {"parallel": {"strategy": "fsdp2"}, **EMA},
    "powersgd": {"parallel": {"compression": {"name": "powersgd", "start_step": 2}}},
    "buffers": {"parallel": {"buffers": "per_rank"}},
    "batch_norm": {"task": {"batch_norm": True, "samples": 36}},
    "scaler": {"precision": "fp16"},
    "zero1 bf16 powersgd": {
        "parallel": {
            "strategy": "zero1",
            "compression": {"name": "powersgd", "start_step": 2},
        },
        "precision": "bf16",
    },
    "fsdp2 bf16 batch_norm": {
        "parallel": {"strategy": "fsdp2"},
        "precision": "bf16",
        "task": {"batch_norm": True, "samples": 36},
    },
}
QUICK = {"zero1", "fsdp2", "powersgd"}
FILES = ("model", "optimizer", "ema", "compression", "buffers", "task")


def parameters(names: list[str]) -> list[Any]:
    return [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in names]


class Runs:
    """Runs of one task, with and without an interruption."""

    def __init__(self, launcher: Launcher, folder: Path, part: str, world: int) -> None:
        settings = PARTS[part]
        task = "buffer_tasks:build" if part == "buffers" else "sample_tasks:build"
        config = BASE | settings | {"task": NOISY | settings.get("task", {})}
        self.arguments = [f"--task={task}", f"--config={json.dumps(config)}"]
        self.launcher, self.world = launcher, world
        self.folders = Folders(folder)
        self.whole, self.broken = self.folders.whole, self.folders.broken
        self.names = self.folders.names

    def start(self, *more: str, attempt: int = 0, world: int | None = None) -> Gang:
        """Start an attempt of the run that is interrupted, or the other run."""
        alone = {"DDP_CHECKPOINT_DIR": str(self.whole)}
        variables = self.folders.variables(attempt) if attempt else alone
        return self.launcher.train(*self.arguments, *more, world=world or self.world, **variables)

    def hang(self, after: int, attempt: int = 1) -> Gang:
        """Let rank 1 hang in the pass of an update, and end all ranks as the agent does."""
        hang = ["--task.die_rank=1", f"--task.die_after={after}", "--task.die_how=hang"]
        gang = self.start(*hang, attempt=attempt)
        gang.wait_until(lambda: (gang.folder / "0.out").exists() and bool(gang.events("start")), 60)
        gang.wait_until(lambda: gang.sleeps(1), 60)
        ask_to_leave(self.folders.records, attempt)
        for rank in range(self.world):
            gang.signal(rank, signal.SIGTERM)
        assert gang.wait() == [ExitCode.PREEMPTED] * self.world, gang.err(0)
        return gang


def ends(folder: Path) -> dict[str, bytes | None]:
    newest = max(folder.glob("step-*"))
    files = [newest / f"{name}.safetensors" for name in FILES]
    return {file.name: file.read_bytes() if file.exists() else None for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("part", parameters(list(PARTS)))
def test_run_whose_ranks_all_leave_continues_with_the_same_bits(
    launcher: Launcher, tmp_path: Path, part: str
) -> None:
    runs = Runs(launcher, tmp_path, part, 3)
    whole = runs.start()
    runs.hang(8)
    (step,) = {int(name[5:13]) for name in runs.names()}
    last = runs.start(attempt=2)
    assert last.wait(120) == [0, 0, 0], last.err(0)
    assert resumed(last) == [step]
    assert step > 5
    assert whole.wait(120) == [0, 0, 0]
    assert ends(runs.whole) == ends(runs.broken)


@pytest.mark.slow
@pytest.mark.parametrize("part", parameters(["zero1", "fsdp2"]))
def test_rank_that_fails_keeps_its_part(launcher: Launcher, tmp_path: Path, part: str) -> None:
    runs = Runs(launcher, tmp_path, part, 2)
    whole = runs.start()
    first = runs.start("--task.die_rank=1", "--task.die_after=8", "--task.die_how=raise", attempt=1)
    assert 1 in first.wait()
    (step,) = {int(name[5:13]) for name in runs.names()}
    assert len(runs.names()) == 3
    last = runs.start(attempt=2)
    assert last.wait() == [0, 0], last.err(0)
    assert resumed(last) == [step]
    assert step > 5
    assert whole.wait() == [0, 0]
    assert ends(runs.whole) == ends(runs.broken)


@pytest.mark.slow
@pytest.mark.parametrize("part", parameters(["zero1", "fsdp2"]))
def test_state_without_the_part_of_a_killed_rank_is_not_used(
    launcher: Launcher, tmp_path: Path, part: str
) -> None:
    runs = Runs(launcher, tmp_path, part, 2)
    whole = runs.start()
    first = runs.start("--task.die_rank=1", "--task.die_after=8", attempt=1)
    assert first.wait()[1] == -signal.SIGKILL
    assert len(runs.names()) == 2
    last = runs.start(attempt=2)
    assert last.wait() == [0, 0], last.err(0)
    assert resumed(last) == [5]
    (sentence,) = [text for text in warnings(last) if "in memory" in text]
    assert sentence.endswith("is not whole, so it is not used: the parts of rank 1 are missing")
    assert runs.names() == []
    assert whole.wait() == [0, 0]
    assert ends(runs.whole) == ends(runs.broken)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("powersgd", "the residues of powersgd start at zero there"),
        pytest.param("buffers", "the buffers there are those of rank", marks=pytest.mark.slow),
    ],
)
def test_rule_replaces_what_only_a_killed_rank_held(
    launcher: Launcher, tmp_path: Path, part: str, rule: str
) -> None:
    runs = Runs(launcher, tmp_path, part, 3)
    first = runs.start("--task.die_rank=1", "--task.die_after=8", attempt=1)
    assert first.wait()[1] == -signal.SIGKILL
    (step,) = {int(name[5:13]) for name in runs.names()}
    last = runs.start(attempt=2)
    assert last.wait() == [0, 0, 0], last.err(0)
    assert resumed(last) == [step]
    (sentence,) = [text for text in warnings(last) if "is lost" in text]
    assert sentence.startswith(f"what only rank 1 held after update {step} is lost: {rule}")


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", parameters(["zero1", "fsdp2", "powersgd"]))
def test_record_at_another_size_equals_a_checkpoint_of_the_same_update(
    launcher: Launcher, tmp_path: Path, part: str, world: int
) -> None:
    """The first attempt stops on request, so memory and volume hold the same update."""
    runs = Runs(launcher, tmp_path, part, 3)
    first = runs.start("--log.every_steps=1", "--task.forward_seconds=0.1", attempt=1)
    first.wait_until((first.folder / "0.out").exists, 60)
    first.wait_until(lambda: len(first.events("progress")) > 3, 60)
    first.signal(0, signal.SIGTERM)
    assert first.wait() == [ExitCode.PREEMPTED] * 3, first.err(0)
    assert len(runs.names()) == 4
    shutil.copytree(runs.broken, runs.whole)
    by_memory, by_volume = runs.start(attempt=2, world=world), runs.start(world=world)
    assert by_memory.wait() == by_volume.wait() == [0] * world, by_memory.err(0)
    (one,), (other,) = by_memory.events("resume"), by_volume.events("resume")
    assert one["step"] == other["step"]
    assert "kept in memory" in one["message"]
    assert "kept in memory" not in other["message"]
    assert ends(runs.whole) == ends(runs.broken)
