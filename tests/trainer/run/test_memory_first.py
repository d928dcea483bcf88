"""Tests that an attempt reads no checkpoint if the state in memory is newer than all of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ddp_trainer.checkpoint.snapshot import own_tensors
from ddp_trainer.config.settings import resolve
from ddp_trainer.numerics.guard import NonFiniteError
from ddp_trainer.observe.heartbeats import HeartbeatWriter
from ddp_trainer.ranks.environment import Ranks
from ddp_trainer.run.opening import RunRequest, open_run
from ddp_trainer.run.run import Run
from ddp_trainer.run.saving import roll_back, save
from ddp_trainer.run.survivors import Survivor
from ddp_trainer.stop import StopFlag
from ddp_trainer.train import loop
from tests.trainer.rank_processes import Launcher
from tests.trainer.run.interrupted import NOISY, Folders, resumed, warnings
from tests.trainer.run.test_resume import final_bytes

TASK = "tests.trainer.sample_tasks:build"
SETTINGS: dict[str, Any] = {"global_batch": 5, "max_steps": 20, "device": "cpu"}


def emptied(directory: Path) -> list[Path]:
    """Delete all files of a run's checkpoints. Return their folders."""
    found = sorted(directory.glob("step-*"))
    for path in found:
        shutil.rmtree(path)
        path.mkdir()
    return found


@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zero1", "fsdp2"))],
)
def test_run_continues_with_the_same_bits_although_no_checkpoint_can_be_read(
    launcher: Launcher, folders: Folders, strategy: str
) -> None:
    checkpoint = {"every_steps": 3, "memory_every_steps": None}
    config = {"epochs": 2, "global_batch": 6, "checkpoint": checkpoint, "task": NOISY}
    config["parallel"] = {"strategy": strategy}
    arguments = ["--task=sample_tasks:build", f"--config={json.dumps(config)}"]
    whole = launcher.train(*arguments, world=2, DDP_CHECKPOINT_DIR=str(folders.whole))
    die = ["--task.die_rank=1", "--task.die_after=8", "--task.die_how=raise"]
    launcher.train(*arguments, *die, world=2, **folders.variables(1)).wait()
    (step,) = folders.steps()
    unreadable = emptied(folders.broken)
    assert [int(path.name[5:13]) for path in unreadable] == [3, 6]
    assert step > 6
    last = launcher.train(*arguments, world=2, **folders.variables(2))
    assert last.wait() == [0, 0], last.err(0)
    assert resumed(last) == [step]
    assert warnings(last) == []
    assert whole.wait() == [0, 0]
    assert final_bytes(folders.whole) == final_bytes(folders.broken)


class Attempts:
    """Attempts of a run of one rank, in the process of the test."""

    def __init__(self, home: Path) -> None:
        self.directory, self.records = home / "run", home / "records"
        self.records.mkdir()

    def opened(self, number: int, **settings: Any) -> Run:
        """Return an attempt before its first update."""
        checkpoint = {"directory": str(self.directory), "every_steps": 2}
        checkpoint["memory_every_steps"] = None
        config = resolve(SETTINGS | {"checkpoint": checkpoint} | settings)
        request = RunRequest(TASK, config, number, "job", self.records)
        return open_run(request, Ranks(), StopFlag(), HeartbeatWriter(None, Ranks(), 0))

    def fail(self, number: int, after: int) -> None:
        """Let the task of an attempt fail after some updates."""
        probe = {"die_rank": 0, "die_after": after, "die_how": "raise"}
        run = self.opened(number, task=probe)
        with pytest.raises(RuntimeError, match="the probe must fail"):
            loop(run, Survivor(run))

    def path(self, step: int, attempt: int = 1) -> Path:
        return self.directory / f"step-{step:08d}.attempt-{attempt}"


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


@pytest.mark.slow
def test_rollback_checks_the_checkpoints_that_the_start_has_not_read(
    attempts: Attempts, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts.fail(1, 5)
    file = attempts.path(4) / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    run = attempts.opened(2)
    assert run.position.step == 5
    assert "is damaged" not in capsys.readouterr().out
    roll_back(run)
    assert f"checkpoint {attempts.path(4)} is damaged" in capsys.readouterr().out
    saved = load_file(attempts.path(2) / "model.safetensors")
    for name, tensor in own_tensors(run.learner.model).items():
        assert saved[name].equal(tensor), name


@pytest.mark.slow
def test_rollback_without_a_whole_checkpoint_ends_the_run(attempts: Attempts) -> None:
    attempts.fail(1, 5)
    emptied(attempts.directory)
    run = attempts.opened(2)
    with pytest.raises(NonFiniteError, match="there is no checkpoint yet to roll back to"):
        roll_back(run)


@pytest.mark.slow
def test_state_is_saved_again_if_the_checkpoint_of_the_same_update_was_not_read(
    attempts: Attempts,
) -> None:
    """The newest checkpoint may be damaged, and a run that ends needs a whole one."""
    attempts.fail(1, 4)
    assert attempts.path(4).is_dir()
    damaged = emptied(attempts.directory)[-1]
    run = attempts.opened(2)
    assert run.position.step == 4
    save(run, required=True)
    (record,) = attempts.records.glob("step-*.attempt-1")
    assert damaged.name == record.name
    for file in record.glob("*.safetensors"):
        assert file.read_bytes() == (attempts.path(4, 2) / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_checkpoint_of_a_later_attempt_is_read(attempts: Attempts) -> None:
    """It may be newer than its name says, because a rollback came before it."""
    attempts.fail(1, 5)
    attempts.path(4).rename(attempts.path(4, 2))
    (attempts.path(4, 2) / "state.json").unlink()
    run = attempts.opened(3)
    assert run.position.step == 5
    names = sorted(path.name for path in attempts.directory.glob("step-*"))
    assert names == ["step-00000002.attempt-1", "step-00000004.attempt-2.broken"]
