"""Tests of survivors: ranks that must end keep the state of the run in memory."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddp_trainer.checkpoint import record_writer
from ddp_trainer.checkpoint.format import MANIFEST, CheckpointName, write_manifest
from ddp_trainer.run import evaluating
from ddp_trainer.run.rehearsal import COMMUTATIVE_RANKS
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.train import loop
from ddp_wire.contract import ExitCode
from ddp_wire.records import PART_FILE, ask_to_leave
from tests.trainer.rank_processes import Gang, Launcher
from tests.trainer.run.interrupted import NOISY, Folders, resumed
from tests.trainer.run.test_resume import final_bytes
from tests.trainer.runs import opened

BASE = {"epochs": 3, "global_batch": 6, "checkpoint": {"every_steps": 50}}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("sample_tasks:build", {}),
    "average and clipping": ("sample_tasks:build", {"ema": {"decay": 0.9}, "clip_norm": 0.5}),
    "accumulation": ("sample_tasks:build", {"micro_batch": 2, "task": {"uneven": True}}),
    "task state": ("sample_tasks:build_full", {}),
    "buffers": ("buffer_tasks:build", {"parallel": {"buffers": "average"}}),
}


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "part", [pytest.param(p, marks=[] if p == "plain" else pytest.mark.slow) for p in PARTS]
)
def test_run_continues_after_the_newest_update_with_the_same_bits(
    launcher: Launcher, folders: Folders, world: int, part: str
) -> None:
    path, settings = PARTS[part]
    task = {"task": NOISY | settings.get("task", {})}
    arguments = [f"--task={path}", f"--config={json.dumps(BASE | settings | task)}"]
    whole = launcher.train(*arguments, world=world, DDP_CHECKPOINT_DIR=str(folders.whole))
    die = [f"--task.die_rank={world - 1}", "--task.die_after=9"]
    first = launcher.train(*arguments, *die, world=world, **folders.variables(1))
    assert first.wait()[world - 1] == -signal.SIGKILL
    second = launcher.train(*arguments, *die, world=world, **folders.variables(2))
    assert second.wait()[world - 1] == -signal.SIGKILL
    last = launcher.train(*arguments, world=world, **folders.variables(3))
    assert last.wait() == [0] * world, last.err(0)
    assert whole.wait() == [0] * world
    (start,) = resumed(second)
    assert start > 0
    assert resumed(last) == [start + _updates(second)]
    assert final_bytes(folders.whole) == final_bytes(folders.broken)
    for file in ("ema.safetensors", "task.safetensors", "task.json"):
        ends = [max(f.glob("step-*")) / file for f in (folders.whole, folders.broken)]
        one, other = (end.read_bytes() if end.exists() else None for end in ends)
        assert one == other, file


def _updates(gang: Gang) -> int:
    """Return the number of the updates of an attempt, by the sentence of a survivor."""
    (start,) = resumed(gang)
    texts = [gang.err(rank) for rank in range(len(gang.processes))]
    (kept,) = [line for text in texts for line in text.splitlines() if "kept the state" in line]
    return int(kept.split("after update ")[1].split()[0]) - start


def test_record_has_the_step_of_the_newest_update(launcher: Launcher, folders: Folders) -> None:
    """The number of passes before the failure gives the step."""
    config = f"--config={json.dumps(BASE | {'task': NOISY})}"
    die = ["--task.die_rank=2", "--task.die_after=7"]
    arguments = ["--task=sample_tasks:build", config]
    gang = launcher.train(*arguments, *die, world=3, **folders.variables(1))
    gang.wait()
    rehearsals = int(COMMUTATIVE_RANKS < 3)
    name = f"step-{7 - rehearsals:08d}.attempt-1"
    assert [path.name for path in folders.records.iterdir()] == [name]


@pytest.mark.slow
def test_rank_that_waits_in_a_collective_leaves_with_its_state(
    launcher: Launcher, folders: Folders
) -> None:
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE | {'task': NOISY})}"]
    whole = launcher.train(*arguments, world=2, DDP_CHECKPOINT_DIR=str(folders.whole))
    hang = ["--task.die_rank=1", "--task.die_after=5", "--task.die_how=hang"]
    hung = launcher.train(*arguments, *hang, world=2, **folders.variables(4))
    hung.wait_until(lambda: (hung.folder / "0.out").exists() and bool(hung.events("start")))
    hung.wait_until(lambda: hung.sleeps(1))
    ask_to_leave(folders.records, 4)
    hung.signal(0, signal.SIGTERM)
    hung.processes[0].join(30)
    assert hung.processes[0].exitcode == ExitCode.PREEMPTED
    hung.processes[1].kill()
    assert [path.name for path in folders.records.glob("step-*")] == ["step-00000005.attempt-4"]
    last = launcher.train(*arguments, world=2, **folders.variables(5))
    assert last.wait() == [0, 0]
    assert resumed(last) == [5]
    assert whole.wait() == [0, 0]
    assert final_bytes(folders.whole) == final_bytes(folders.broken)


@pytest.mark.slow
def test_run_that_stops_on_request_keeps_the_state_of_its_checkpoint(
    launcher: Launcher, folders: Folders
) -> None:
    arguments = ["--task=sample_tasks:build", "--config=" + json.dumps(BASE | {"epochs": 500})]
    gang = launcher.train(*arguments, "--log.every_steps=1", world=2, **folders.variables(1))
    gang.wait_until(lambda: (gang.folder / "0.out").exists() and bool(gang.events("progress")))
    gang.signal(0, signal.SIGTERM)
    assert gang.wait() == [ExitCode.PREEMPTED] * 2
    (record,) = folders.records.glob("step-*")
    (saved,) = folders.broken.glob("step-*")
    assert record.name == saved.name
    for file in saved.glob("*.safetensors"):
        assert file.read_bytes() == (record / file.name).read_bytes()
    shutil.rmtree(folders.broken)  # The next attempt does not need the volume.
    parsed = CheckpointName.parse(record.name)
    assert parsed is not None
    step = parsed.step
    last = launcher.train(*arguments, f"--max_steps={step + 1}", world=2, **folders.variables(2))
    assert last.wait() == [0, 0], last.err(0)
    assert resumed(last) == [step]


def test_rank_between_two_averages_of_local_sgd_writes_nothing(
    launcher: Launcher, folders: Folders
) -> None:
    config = BASE | {"parallel": {"local_sgd": {"period": 50}}}
    die = ["--task.die_rank=1", "--task.die_after=6"]
    arguments = ["--task=buffer_tasks:build", f"--config={json.dumps(config)}", *die]
    launcher.train(*arguments, world=2, **folders.variables(1)).wait()
    assert list(folders.records.iterdir()) == []


@pytest.mark.slow
def test_state_with_weights_that_are_not_finite_is_not_written(tmp_path: Path) -> None:
    task = {"samples": 50, "nan_sample": 3, "die_rank": 0, "die_after": 9, "die_how": "raise"}
    run = opened(global_batch=50, epochs=20, nonfinite={"policy": "stop"}, task=task)
    run.learner.guard.protects = False  # As with an optimizer of the task.
    run.records = tmp_path
    with pytest.raises(RuntimeError, match="the probe must fail"):
        loop(run, Survivor(run))
    assert list(tmp_path.iterdir()) == []


def test_rank_before_its_first_update_writes_nothing(launcher: Launcher, folders: Folders) -> None:
    die = ["--task.die_rank=1", "--task.die_after=0"]
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE)}", *die]
    launcher.train(*arguments, world=2, **folders.variables(1)).wait()
    assert list(folders.records.iterdir()) == []


@pytest.mark.slow
def test_newer_checkpoint_wins_over_a_record(launcher: Launcher, folders: Folders) -> None:
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE)}"]
    die = ["--task.die_rank=1", "--task.die_after=4"]
    launcher.train(*arguments, *die, world=2, **folders.variables(1)).wait()
    (record,) = folders.records.glob("step-*")
    later = launcher.train(
        *arguments, "--max_steps=9", world=2, DDP_CHECKPOINT_DIR=str(folders.broken)
    )
    assert later.wait() == [0, 0]
    last = launcher.train(*arguments, world=2, **folders.variables(2))
    assert last.wait() == [0, 0]
    assert record.name == "step-00000004.attempt-1"
    assert resumed(last) == [9]


def test_run_without_a_checkpoint_directory_continues_from_a_record(
    launcher: Launcher, folders: Folders
) -> None:
    arguments = ["--task=sample_tasks:build", '--config={"epochs": 2, "global_batch": 6}']
    variables = {"DDP_RECORDS_DIR": str(folders.records), "DDP_ATTEMPT": "1"}
    die = ["--task.die_rank=0", "--task.die_after=4"]
    launcher.train(*arguments, *die, world=2, **variables).wait()
    last = launcher.train(*arguments, world=2, **variables)
    assert last.wait() == [0, 0]
    assert resumed(last) == [4]


def test_error_of_the_task_keeps_the_state_of_a_single_rank(tmp_path: Path) -> None:
    run = opened(global_batch=5, epochs=1, task={"samples": 50, "die_rank": 0, "die_after": 6,
                                                "die_how": "raise"})  # fmt: skip
    run.records = tmp_path
    survivor = Survivor(run)
    with pytest.raises(RuntimeError, match="the probe must fail"):
        loop(run, survivor)
    (record,) = tmp_path.glob("step-*")
    assert record.name == "step-00000006.attempt-0"
    saved = load_file(record / "model.safetensors")
    for name, tensor in run.learner.model.state_dict().items():
        assert torch.equal(saved[name], tensor), name


def test_state_inside_an_update_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(global_batch=5, epochs=1, checkpoint={"memory_every_steps": None})
    run.records = tmp_path
    survivor = Survivor(run)
    steps = iter(range(100))

    def fail(*_: object) -> None:
        if next(steps) == 3:
            raise RuntimeError("in the optimizer")

    monkeypatch.setattr(run.learner.strategy, "after_update", fail)
    with pytest.raises(RuntimeError, match="in the optimizer"):
        loop(run, survivor)
    assert list(tmp_path.iterdir()) == []


def test_record_without_room_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_writer, "RESERVE_BYTES", 1 << 60)
    run = opened(global_batch=5, epochs=1, task={"die_rank": 0, "die_after": 2, "die_how": "raise"})
    run.records = tmp_path
    with pytest.raises(RuntimeError, match="the probe must fail"):
        loop(run, Survivor(run))
    lines = [line for line in capsys.readouterr().err.splitlines() if "kept in memory" in line]
    assert len(lines) == 1
    assert lines[0].startswith("rank 0: the state after update 2 was not kept in memory: it needs")


@pytest.mark.parametrize("saves", [True, False])
def test_stop_without_room_is_silent_if_a_checkpoint_is_saved(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    saves: bool,
) -> None:
    monkeypatch.setattr(record_writer, "RESERVE_BYTES", 1 << 60)
    directory = str(tmp_path / "run") if saves else None
    checkpoint = {"directory": directory, "memory_every_steps": None}
    run = opened(global_batch=5, max_steps=2, checkpoint=checkpoint)
    run.records = tmp_path / "records"
    run.records.mkdir()
    survivor = Survivor(run)
    loop(run, survivor)
    with survivor.keeping():
        pass
    assert list(run.records.iterdir()) == []
    assert ("was not kept in memory" in capsys.readouterr().err) != saves


@pytest.mark.slow
def test_records_that_differ_are_not_used(launcher: Launcher, folders: Folders) -> None:
    """Two folders stand for two nodes, of which one has changed a record."""
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(BASE)}"]
    die = ["--task.die_rank=1", "--task.die_after=4"]
    launcher.train(*arguments, *die, world=2, **folders.variables(1)).wait()
    (record,) = folders.records.glob("step-*")
    other = folders.records.with_name("other")
    shutil.copytree(folders.records, other)
    changed = other / record.name / PART_FILE
    part = json.loads(changed.read_text())
    changed.write_text(json.dumps(part | {"digest": part["digest"] + 1}))
    (changed.parent / MANIFEST).unlink()
    write_manifest(changed.parent, CheckpointName(4, 1))
    nodes = json.dumps([str(folders.records), str(other)])
    last = launcher.call(
        "rank_processes:run_node", [nodes, *arguments], world=2, **folders.variables(2)
    )
    assert last.wait() == [0, 0], last.err(0)
    assert resumed(last) == []
    (warning,) = last.events("warning")
    assert warning["message"].startswith("the nodes of ranks 0, 1 kept different states after")


@pytest.mark.slow
@pytest.mark.parametrize("averaged", [False, True])
def test_state_is_kept_during_an_evaluation_unless_the_averaged_weights_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaged: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a peer was lost")

    monkeypatch.setattr(evaluating, "evaluate", fail)
    run = opened(global_batch=5, epochs=2, ema={"decay": 0.9, "evaluate": averaged},
                 checkpoint={"memory_every_steps": None})  # fmt: skip
    run.records = tmp_path
    with pytest.raises(RuntimeError, match="a peer was lost") as failed:
        loop(run, survivor := Survivor(run))
    survivor.write_after(failed.value)
    assert [path.name for path in tmp_path.iterdir()] == ([] if averaged else [FIRST_EPOCH])


FIRST_EPOCH = "step-00000010.attempt-0"
