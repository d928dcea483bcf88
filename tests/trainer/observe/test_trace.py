"""Tests of profiles on request, and of phase times."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from ddp_trainer.observe.phases import PhaseTimer
from ddp_trainer.observe.trace import Trace
from ddp_wire.activity import Activity
from ddp_wire.contract import PROFILE_REQUEST
from tests.trainer.rank_processes import Launcher

TASK = ["--task=sample_tasks:build", "--global_batch=6", "--epochs=100000"]
QUICK = ["--parallel.agree_seconds=0.1", "--log.every_steps=100000", "--eval_every_steps=3"]


@pytest.mark.slow
def test_run_in_progress_writes_the_requested_profile(launcher: Launcher, tmp_path: Path) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path / "run"), "DDP_CHECKPOINT_EVERY_STEPS": "4"}
    gang = launcher.train(*TASK, *QUICK, world=2, **environ)
    gang.wait_until(lambda: len(list((tmp_path / "run").glob("step-*"))) > 1)
    command = launcher.call(
        "rank_processes:run_command", ["profile", "--steps=12"], world=None, **environ
    )
    assert command.wait() == [0]
    folder = tmp_path / "run" / "profiles"
    assert command.out(0) == f"requested; rank 0 will write the trace to {folder}\n"
    gang.wait_until(lambda: bool(gang.events("profile")))
    path = Path(gang.events("profile")[0]["path"])
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    for name in ("data", "forward", "backward", "optimizer", "checkpoint", "evaluation"):
        assert name in names
    assert names.count("forward") == 12
    assert any(str(name).startswith("gloo:all_reduce") for name in names)
    assert not (tmp_path / "run" / PROFILE_REQUEST).exists()


def test_profiler_records_nothing_without_a_request(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    trace.enter(Activity.FORWARD)
    assert trace.after_update(3) is None
    assert trace.end(3) is None
    assert list(tmp_path.iterdir()) == []


def test_profile_starts_at_the_requested_update_and_ends_with_the_run(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    (tmp_path / PROFILE_REQUEST).write_text('{"from": 5, "steps": 9}')
    trace.poll_request(pytest.fail)
    for step in (3, 4):
        trace.after_update(step)
        trace.enter(Activity.BACKWARD)
    trace.after_update(5)
    trace.enter(Activity.FORWARD)
    assert trace.after_update(6) is None
    path = trace.end(7)
    assert path is not None
    assert path == tmp_path / "profiles" / "steps-00000005-00000007.pt.trace.json"
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "forward" in names
    assert "backward" not in names


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 0}', '{"steps": 1000}', '{"from": "x"}'])
def test_invalid_request_causes_a_warning_and_is_deleted(tmp_path: Path, text: str) -> None:
    warnings: list[str] = []
    (tmp_path / PROFILE_REQUEST).write_text(text)
    Trace(tmp_path).poll_request(warnings.append)
    assert len(warnings) == 1
    assert not (tmp_path / PROFILE_REQUEST).exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "profile: name the run's directory or set the variable DDP_CHECKPOINT_DIR\n"),
        (["/nowhere"], "profile: /nowhere must be the directory of a run, with its config.json\n"),
        (["--step=3"], "profile: unknown argument --step=3\n"),
    ],
)
def test_profile_command_reports_invalid_arguments(
    launcher: Launcher, arguments: list[str], sentence: str
) -> None:
    gang = launcher.call("rank_processes:run_command", ["profile", *arguments], world=None)
    assert gang.wait() == [2]
    assert gang.err(0) == sentence


def test_phases_are_timed_only_in_the_first_update_after_the_ranks_exchange_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    trace = Trace(None, PhaseTimer(torch.device("cpu")))
    parts = (Activity.DATA, Activity.FORWARD, Activity.BACKWARD)
    update = (*parts, *parts, Activity.OPTIMIZER)
    for activity in (*update, Activity.EXCHANGE, Activity.CHECKPOINT, *update):
        trace.enter(activity)
        trace.after_update(1) if activity is Activity.OPTIMIZER else None
    measured = {"data": 2.0, "forward": 2.0, "backward": 2.0, "optimizer": 1.0}
    for activity in (*update, Activity.EXCHANGE):
        assert trace.seconds() == measured
        trace.enter(activity)
    assert trace.seconds() == measured
    trace.after_update(3)
    for activity in (*parts, Activity.OPTIMIZER, Activity.EXCHANGE):
        trace.enter(activity)
    assert trace.seconds() == {"data": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
