"""Tests of snapshots in memory: a run continues after all its ranks were killed at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint import records, room, slots
from ddp_trainer.errors import ReplicasDifferError
from ddp_trainer.run.memory_watch import MemoryWatch
from ddp_trainer.run.snapshots import MemorySnapshots, every_updates
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.train import loop
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.run.interrupted import Folders, resumed
from tests.trainer.run.test_resume import final_bytes
from tests.trainer.runs import opened

NOISY = {"samples": 60, "dropout": 0.3, "noise": 0.1, "forward_seconds": 0.01}
CHECKPOINT = {"every_steps": 1000, "memory_every_steps": 3}
PATIENCE = 200.0
"""Maximum seconds that a test waits for ranks on a busy machine."""
BASE: dict[str, Any] = {"epochs": 3, "global_batch": 6, "checkpoint": CHECKPOINT}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("sample_tasks:build", {}),
    "average and clipping": ("sample_tasks:build", {"ema": {"decay": 0.9}, "clip_norm": 0.5}),
    "task state": ("sample_tasks:build_full", {}),
    "buffers": ("buffer_tasks:build", {"parallel": {"buffers": "average"}}),
    "buffers of each rank": ("buffer_tasks:build", {"parallel": {"buffers": "per_rank"}}),
    "powersgd": ("sample_tasks:build", {"parallel": {"compression": {"name": "powersgd"}}}),
    "zero1": ("sample_tasks:build", {"parallel": {"strategy": "zero1"}}),
    "fsdp2": ("sample_tasks:build", {"parallel": {"strategy": "fsdp2"}}),
}


def kill_all(gang: Gang) -> None:
    """Kill all ranks in one moment."""
    for process in gang.processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    assert gang.wait(PATIENCE) == [-signal.SIGKILL] * len(gang.processes)


def kill_after(gang: Gang, folders: Folders, step: int) -> None:
    """Kill all ranks in one moment, after the snapshot of an update."""
    gang.wait_until(lambda: max(folders.steps(), default=0) >= step, PATIENCE)
    kill_all(gang)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == "ddp" else pytest.mark.slow) for k in KINDS]
)
def test_run_whose_ranks_are_all_killed_continues_with_the_same_bits(
    launcher: Launcher, folders: Folders, world: int, kind: str
) -> None:
    path, settings = KINDS[kind]
    config = BASE | settings | {"task": NOISY}
    arguments = [f"--task={path}", f"--config={json.dumps(config)}"]
    whole = launcher.train(*arguments, world=world, DDP_CHECKPOINT_DIR=str(folders.whole))
    starts: list[int] = []
    for attempt in (1, 2):
        gang = launcher.train(*arguments, world=world, **folders.variables(attempt))
        kill_after(gang, folders, max(folders.steps(), default=0) + 6)
        starts += resumed(gang)
    last = launcher.train(*arguments, world=world, **folders.variables(3))
    assert last.wait(PATIENCE) == [0] * world, last.err(0)
    assert whole.wait(PATIENCE) == [0] * world
    starts += resumed(last)
    assert len(starts) == 2
    assert starts[0] >= 7
    assert starts[1] >= starts[0] + 6
    assert final_bytes(folders.whole) == final_bytes(folders.broken)


@pytest.mark.slow
def test_at_most_one_interval_is_repeated(launcher: Launcher, folders: Folders) -> None:
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE | {'task': NOISY})}"]
    gang = launcher.train(*arguments, "--log.every_steps=1", world=2, **folders.variables(1))
    kill_after(gang, folders, 10)
    done = max(event["step"] for event in gang.events("progress"))
    last = launcher.train(*arguments, world=2, **folders.variables(2))
    assert last.wait(PATIENCE) == [0, 0]
    (start,) = resumed(last)
    assert start % 3 == 1
    # One more update may be complete, and one snapshot not yet.
    assert done + 1 - start <= 2 * 3


@pytest.mark.slow
def test_newest_of_survivor_snapshot_and_checkpoint_is_used(
    launcher: Launcher, folders: Folders
) -> None:
    """A survivor keeps a later update than the newest snapshot."""
    config = BASE | {"task": NOISY | {"die_rank": 1, "die_after": 12}}
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    launcher.train(*arguments, world=2, **folders.variables(1)).wait(PATIENCE)
    steps = folders.steps()
    assert steps[-1] == 12
    saved = launcher.train(
        *arguments, "--task.die_after=-1", "--max_steps=14", world=2, **folders.variables(2)
    )
    assert saved.wait(PATIENCE) == [0, 0]
    assert resumed(saved) == [12]
    last = launcher.train(*arguments, "--task.die_after=-1", world=2, **folders.variables(3))
    assert last.wait(PATIENCE) == [0, 0]
    assert resumed(last) == [14]


def test_survivor_needs_no_memory_beside_the_slots(launcher: Launcher, folders: Folders) -> None:
    config = BASE | {"task": NOISY | {"die_rank": 1, "die_after": 12}}
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    launcher.train(*arguments, world=2, **folders.variables(1)).wait(PATIENCE)
    assert len(list(folders.records.glob("step-*"))) == 1
    assert folders.steps() == [12]


@pytest.mark.slow
def test_same_exception_in_all_ranks_loses_at_most_the_interval(
    launcher: Launcher, folders: Folders
) -> None:
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE | {'task': NOISY})}"]
    both = ["--task.die_rank=0", "--task.die_after=11", "--task.die_how=raise"]
    first = launcher.train(*arguments, *both, world=2, **folders.variables(1))
    assert 0 not in first.wait(PATIENCE)
    last = launcher.train(*arguments, world=2, **folders.variables(2))
    assert last.wait(PATIENCE) == [0, 0]
    assert resumed(last)[0] >= 10


@pytest.mark.slow
def test_run_under_torchrun_whose_ranks_are_all_killed_continues_with_the_same_bits(
    folders: Folders,
) -> None:
    """The ranks and torchrun are killed in one moment, while the ranks are in a pass."""
    config = BASE | {"task": NOISY, "device": "cpu"}

    def started(**variables: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", "--no-python", sys.executable, "-m", "ddp_trainer"]
        command += ["train", "--task=sample_tasks:build", f"--config={json.dumps(config)}"]
        path = {"PYTHONPATH": str(Path(__file__).parents[1])}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DDP_")}
        return subprocess.Popen(
            command, env=kept | path | variables, start_new_session=True, stderr=subprocess.DEVNULL
        )

    whole = started(DDP_CHECKPOINT_DIR=str(folders.whole))
    assert whole.wait(PATIENCE) == 0
    first = started(**folders.variables(1))
    deadline = time.monotonic() + PATIENCE
    while max(folders.steps(), default=0) < 10:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for pid in [*_children(first.pid), first.pid]:
        os.kill(pid, signal.SIGKILL)
    first.wait()
    step = folders.steps()[-1]
    assert started(**folders.variables(2)).wait(PATIENCE) == 0
    history = (folders.broken / "history.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in history]
    assert [event["step"] for event in events if event["event"] == "resume"] == [step]
    assert final_bytes(folders.whole) == final_bytes(folders.broken)


def _children(pid: int) -> list[int]:
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def test_interval_follows_the_cost() -> None:
    assert every_updates(0.001, 1.0) == 1
    assert every_updates(0.01, 1.0) == 2
    assert every_updates(0.5, 0.1) == 1000
    assert every_updates(0.5, 0.0) == 1


@pytest.mark.slow
def test_chosen_interval_is_reported(launcher: Launcher, folders: Folders) -> None:
    config = BASE | {"checkpoint": {"every_steps": 1000}, "task": NOISY}
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    gang = launcher.train(*arguments, world=2, **folders.variables(1))
    assert gang.wait(PATIENCE) == [0, 0]
    notes = [e["message"] for e in gang.events("note") if "copied to memory" in e["message"]]
    assert notes
    assert notes[0].startswith("the state is copied to memory every ")


@pytest.mark.parametrize("settings", [{"memory": False, "memory_every_steps": "auto"},
                                      {"memory_every_steps": None}])  # fmt: skip
def test_snapshots_can_be_turned_off(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = opened(global_batch=5, epochs=2, checkpoint=settings)
    run.records = tmp_path if settings.get("memory", True) else None
    loop(run)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_node_without_a_folder_in_memory_does_not_stop_the_others(
    launcher: Launcher, folders: Folders
) -> None:
    nodes = json.dumps([str(folders.records), ""])
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE | {'task': NOISY})}"]
    gang = launcher.call(
        "rank_processes:run_node", [nodes, *arguments], world=2, **folders.variables(1)
    )
    assert gang.wait(PATIENCE) == [0, 0], gang.err(0)
    assert len(folders.steps()) == 2


def lines_about_memory(text: str) -> list[str]:
    return [line for line in text.splitlines() if "copied to memory" in line and "rank" in line]


def test_state_without_room_is_one_sentence_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "free", lambda _: {"the node": 100 << 20})
    run = opened(global_batch=5, epochs=2, checkpoint={"memory_every_steps": 2})
    run.records = tmp_path
    loop(run)
    assert run.position.step == run.total_steps
    assert list(tmp_path.iterdir()) == []
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert line.startswith(
        "rank 0: the state is no longer copied to memory every few updates: it needs 0 MiB and"
    )
    assert line.endswith("MiB of reserve, and the node has 100 MiB left")


@pytest.mark.slow
def test_slots_are_deleted_when_memory_runs_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {"the memory file system": 1 << 40}
    monkeypatch.setattr(room, "free", lambda _: left)
    monkeypatch.setattr(MemoryWatch, "_may_be_low", lambda _: True)
    run = opened(global_batch=5, epochs=6, checkpoint={"memory_every_steps": 2},
                 task={"forward_seconds": 0.01})  # fmt: skip
    run.records = tmp_path
    seen: list[list[str]] = []
    take = MemorySnapshots.after_update

    def after_update(self: MemorySnapshots) -> None:
        take(self)
        seen.append([path.name for path in tmp_path.iterdir()])
        if run.position.step == 9:
            left["the memory file system"] = 1 << 20
            deadline = time.monotonic() + 20
            while list(tmp_path.iterdir()):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    monkeypatch.setattr(MemorySnapshots, "after_update", after_update)
    loop(run)
    assert len(seen[7]) == 2
    assert seen[-1] == []
    assert run.position.step == run.total_steps
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert "memory runs short: it needs 0 MiB and 64 MiB of reserve, and the memory file" in line


@pytest.mark.slow
def test_full_file_system_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    run = opened(global_batch=5, epochs=2, checkpoint={"memory_every_steps": 2})
    run.records = tmp_path
    loop(run)
    assert list(tmp_path.iterdir()) == []
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert line.endswith("[Errno 28] No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 5])
def test_folder_that_vanishes_is_one_sentence_and_training_goes_on(
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = opened(global_batch=5, epochs=3, checkpoint={"memory_every_steps": 1})
    run.records = tmp_path / "records"
    run.records.mkdir()
    take = MemorySnapshots.after_update

    def after_update(self: MemorySnapshots) -> None:
        take(self)
        if run.position.step == step:
            (tmp_path / "records").rename(tmp_path / "gone")

    monkeypatch.setattr(MemorySnapshots, "after_update", after_update)
    loop(run)
    assert run.position.step == run.total_steps
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert "No such file or directory" in line


@pytest.mark.parametrize("function", ["missing", "acquire", "allocate"])
def test_each_error_of_the_folder_is_one_sentence(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    run = opened(global_batch=5, epochs=2, checkpoint={"memory_every_steps": 2})
    run.records = tmp_path
    monkeypatch.setattr(slots, function, fails)
    loop(run)
    assert run.position.step == run.total_steps
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert line.endswith("[Errno 5] Input/output error")


def test_file_system_whose_size_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> dict[str, int]:
        raise OSError(5, "Input/output error")

    run = opened(global_batch=5, epochs=2, checkpoint={"memory_every_steps": 2})
    run.records = tmp_path
    monkeypatch.setattr(room, "free", fails)
    loop(run)
    assert run.position.step == run.total_steps
    (line,) = lines_about_memory(capsys.readouterr().err)
    assert line.endswith("[Errno 5] Input/output error")


@pytest.mark.slow
def test_snapshots_of_ranks_that_differ_are_deleted(tmp_path: Path) -> None:
    run = opened(global_batch=5, epochs=2, checkpoint={"memory_every_steps": 2})
    run.records = tmp_path
    survivor = Survivor(run)
    loop(run, survivor)
    assert records.find(tmp_path)
    error = ReplicasDifferError("they differ", 1, blamed=True, silent=False)  # type: ignore[arg-type]
    survivor.write_after(error)
    assert list(tmp_path.iterdir()) == []
