"""Early ends of an attempt: signals, lost peers, exceptions and time limits."""

import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ddp_agent.failures import describe
from ddp_trainer.stop import SAME_KEY_SECONDS
from ddp_wire.activity import Activity, ActivityRecord, read_activities
from ddp_wire.processes import descendants
from tests.trainer.rank_processes import Launcher

TASK = "--task=sample_tasks:build"
LONG = [
    TASK,
    "--global_batch=6",
    "--epochs=2000",
    "--parallel.agree_seconds=0.2",
    "--log.every_steps=100000",
]


STARTING = ActivityRecord(0, Activity.STARTING, 0.0)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def steps(beats: Path) -> int:
    try:
        return int(json.loads((beats / "0.json").read_text())["step"])
    except FileNotFoundError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_one_rank_stops_all_ranks_after_saving(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path / "ck"), "DDP_BEATS_DIR": str(tmp_path / "beats")}
    gang = launcher.train(*LONG, "--checkpoint.every_steps=1000000", world=2, **environ)
    gang.wait_until(lambda: steps(tmp_path / "beats") > 20)
    sent = time.monotonic()
    gang.signal(1, number)
    assert gang.wait() == [85, 85]
    assert time.monotonic() - sent < 10
    (stopped,) = gang.events("stop")
    (name,) = [path.name for path in (tmp_path / "ck").glob("step-*")]
    assert stopped["checkpoint"].endswith(name)
    assert name == f"step-{stopped['steps']:08d}.attempt-0"
    assert gang.err(0) == gang.err(1) == ""
    assert json.loads((tmp_path / "beats" / "1.json").read_text())["phase"] == "Done"


def test_signal_before_the_first_update_stops_all_ranks(launcher: Launcher, tmp_path: Path) -> None:
    environ = {"DDP_BEATS_DIR": str(tmp_path)}
    gang = launcher.train(*LONG, world=2, **environ)
    gang.wait_until((tmp_path / "1.json").exists)
    gang.signal(1, signal.SIGTERM)
    assert gang.wait() == [85, 85]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_check_command_at_once(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    command = ["check", "--task=sample_tasks:build_waiting", f"--task.log_dir={tmp_path}"]
    gang = launcher.call("rank_processes:run_command", command, world=None)
    gang.wait_until((tmp_path / "0.waiting").exists)
    gang.signal(0, number)
    assert gang.wait() == [-number]
    assert gang.err(0) == ""


def test_second_interrupt_ends_a_rank_that_waits_in_a_collective(
    launcher: Launcher, tmp_path: Path
) -> None:
    hang = ["--task.die_rank=1", "--task.die_how=hang", "--task.die_after=5"]
    gang = launcher.train(*LONG, *hang, world=2, DDP_BEATS_DIR=str(tmp_path))
    gang.wait_until(lambda: read_activities(tmp_path).get(0, STARTING).step == 5)
    gang.wait_until(lambda: read_activities(tmp_path)[0].activity is Activity.BACKWARD)
    first = time.monotonic()
    while gang.processes[0].is_alive():
        with suppress(ProcessLookupError):  # It may end between the question and the signal.
            gang.signal(0, signal.SIGINT)
        gang.processes[0].join(0.02)
        assert time.monotonic() - first < 10
    assert time.monotonic() - first > SAME_KEY_SECONDS, "one Ctrl-C may arrive several times"
    assert gang.processes[0].exitcode == 130
    assert gang.err(0) == "ended at once by a second SIGINT, without saving\n"
    gang.signal(1, signal.SIGKILL)
    assert gang.wait() == [130, -9]


@pytest.mark.slow
def test_loader_workers_end_when_their_rank_is_killed(launcher: Launcher, tmp_path: Path) -> None:
    gang = launcher.train(*LONG, "--data.workers=2", DDP_BEATS_DIR=str(tmp_path))
    gang.wait_until(lambda: steps(tmp_path) > 0)
    assert gang.processes[0].pid
    started = descendants(gang.processes[0].pid)
    assert len(started) >= 3, "the fork server and two workers"
    gang.signal(0, signal.SIGKILL)
    assert gang.wait() == [-9]
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.01)


def test_killed_rank_ends_the_other_ranks_within_seconds(launcher: Launcher) -> None:
    die = ["--task.die_rank=1", "--task.die_after=5"]
    gang = launcher.train(*LONG, *die, world=3)
    gang.processes[1].join(60)
    died = time.monotonic()
    assert gang.wait() == [1, -9, 1]
    assert time.monotonic() - died < 10
    for rank in (0, 2):
        (sentence,) = gang.err(rank).splitlines()
        assert re.match(rf"rank {rank}, update \d+: lost another rank: .* by peer", sentence)
        assert describe(attempt=0, rank=rank, returncode=1, text=sentence, at=0).secondary


@pytest.mark.slow
def test_first_update_has_its_own_timeout(launcher: Launcher) -> None:
    sleep = ["--task.die_rank=1", "--task.die_how=sleep", "--max_steps=9"]
    limits = ["--parallel.timeout_seconds=4", "--parallel.first_timeout_seconds=60"]
    in_first, later = (
        launcher.train(*LONG, *sleep, f"--task.die_after={passes}", *limits, world=2)
        for passes in (0, 5)
    )
    assert in_first.wait() == [0, 0]
    assert later.wait() == [1, 1]
    assert later.err(0).startswith("rank 0, update 6: waited 4.")


def test_exception_is_printed_once_and_recorded(launcher: Launcher) -> None:
    die = ["--task.die_rank=0", "--task.die_after=5", "--task.die_how=raise"]
    gang = launcher.train(*LONG, *die, world=2)
    assert gang.wait() == [1, 1]
    assert gang.err(0).startswith("rank 0, update 6: RuntimeError: the probe must fail\n")
    assert gang.err(0).count("Traceback") == 1
    assert gang.err(1).startswith("rank 1, update 6: lost another rank: ")
    assert gang.err(1).count("\n") == 1
    error = json.loads((gang.folder / "0.error.json").read_text())
    assert error["message"]["message"] == "RuntimeError: the probe must fail"
    assert "in _note" in error["message"]["extraInfo"]["py_callstack"]


@pytest.mark.slow
def test_run_completes_after_max_seconds(launcher: Launcher, tmp_path: Path) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path)}
    arguments = [*LONG[:-1], "--log.every_steps=1", "--max_seconds=0.5"]
    arguments += ["--checkpoint.every_steps=1000000"]
    gang = launcher.train(*arguments, world=2, **environ)
    assert gang.wait() == [0, 0]
    (summary,) = gang.events("summary")
    assert 0.5 <= summary["seconds"] < 5
    assert summary["steps"] < summary["total_steps"]
    remaining = [event["eta_seconds"] for event in gang.events("progress")]
    assert remaining
    assert all(0 <= seconds <= 1 for seconds in remaining)
    again = launcher.train(*arguments, world=2, **environ)
    assert again.wait() == [0, 0]
    assert "nothing left to train" in again.events("complete")[0]["message"]


@pytest.mark.slow
def test_checkpoints_are_saved_by_the_clock(launcher: Launcher, tmp_path: Path) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path), "DDP_CHECKPOINT_EVERY_SECONDS": "1"}
    gang = launcher.train(*LONG, "--max_seconds=2.5", world=2, **environ)
    assert gang.wait() == [0, 0]
    assert 2 <= len(gang.events("checkpoint")) <= 3
