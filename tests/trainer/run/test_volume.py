"""Tests of all ranks of a run whose volume is slow or fails."""

from pathlib import Path

import pytest

from tests.trainer.rank_processes import Gang, Launcher

TASK = ["--task=sample_tasks:build", "--global_batch=10"]


def trained_once(launcher: Launcher, directory: Path) -> None:
    """Leave a checkpoint of update 2 behind."""
    arguments = [*TASK, "--max_steps=2", f"--checkpoint.directory={directory}"]
    assert launcher.train(*arguments, world=None).wait() == [0]


def train(launcher: Launcher, fault: str, directory: Path, *arguments: str) -> Gang:
    given = [fault, f"--checkpoint.directory={directory}", *arguments]
    return launcher.call("probes:train_on_faulty_volume", given, world=2)


@pytest.mark.slow
def test_ranks_wait_longer_for_a_checkpoint_than_for_a_collective(
    launcher: Launcher, tmp_path: Path
) -> None:
    trained_once(launcher, tmp_path)
    gang = train(launcher, "slow", tmp_path, "--max_steps=4", "--parallel.timeout_seconds=1")
    assert gang.wait() == [0, 0], gang.err(1)
    assert [event["step"] for event in gang.events("resume")] == [2]
    (saved,) = gang.events("checkpoint")
    assert saved["step"] == 4
    assert saved["seconds"] > 1.0


def test_all_ranks_exit_with_the_same_code_if_rank_0_cannot_read_the_checkpoint(
    launcher: Launcher, tmp_path: Path
) -> None:
    trained_once(launcher, tmp_path)
    before = sorted(tmp_path.glob("step-*"))
    gang = train(launcher, "EIO", tmp_path, "--max_steps=4")
    assert gang.wait() == [74, 74]
    (line,) = gang.err(0).splitlines()
    assert line.startswith(f"checkpoint: cannot read {before[-1]}: [Errno 5] Input/output error")
    assert gang.err(1) == ""
    assert sorted(tmp_path.glob("step-*")) == before


def test_failed_save_is_a_warning_and_a_failed_last_save_ends_all_ranks(
    launcher: Launcher, tmp_path: Path
) -> None:
    gang = train(launcher, "ENOSPC", tmp_path, "--max_steps=2", "--checkpoint.every_steps=1")
    assert gang.wait() == [74, 74]
    (warning,) = gang.events("warning")
    reason = f"was not saved to {tmp_path}: [Errno 28] No space left on device"
    assert warning["message"].startswith(f"checkpoint of step 1 {reason}")
    assert warning["message"].endswith("; training continues")
    (line,) = gang.err(0).splitlines()
    assert line.startswith(f"checkpoint of step 2 {reason}")
    assert gang.err(1) == ""
