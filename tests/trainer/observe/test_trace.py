"""A profile is made of a run that is going on, when it is asked for."""

import itertools
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from ddp_trainer.observe.phases import Phases
from ddp_trainer.observe.trace import REQUEST, Trace
from tests.trainer.rank_processes import Launcher

TASK = ["--task=sample_tasks:build", "--global_batch=6", "--epochs=100000"]
QUICK = ["--parallel.agree_seconds=0.1", "--log.every_steps=100000", "--eval_every_steps=3"]


def test_a_running_run_writes_the_trace_that_is_asked_for(
    launcher: Launcher, tmp_path: Path
) -> None:
    environ = {"DDP_CHECKPOINT_DIR": str(tmp_path / "run"), "DDP_CHECKPOINT_EVERY_STEPS": "4"}
    gang = launcher.train(*TASK, *QUICK, world=2, **environ)
    gang.until(lambda: len(list((tmp_path / "run").glob("step-*"))) > 1)
    asked = launcher.call(
        "rank_processes:_command", ["profile", "--steps=12"], world=None, **environ
    )
    assert asked.wait() == [0]
    assert asked.out(0) == f"asked; the trace will be in {tmp_path / 'run' / 'profiles'}\n"
    gang.until(lambda: bool(gang.events("profile")))
    path = Path(gang.events("profile")[0]["path"])
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    for name in ("data", "forward", "backward", "optimizer", "checkpoint", "evaluation"):
        assert name in names
    assert names.count("forward") == 12
    assert any(str(name).startswith("gloo:all_reduce") for name in names)
    assert not (tmp_path / "run" / REQUEST).exists()


def test_nothing_is_recorded_while_nobody_asks(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    assert isinstance(trace.range("forward"), nullcontext)
    assert trace.range("forward") is trace.range("backward")
    assert trace.updated(3) is None
    assert trace.end(3) is None
    assert list(tmp_path.iterdir()) == []


def test_a_later_first_update_is_waited_for_and_the_end_of_the_run_ends_it(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    (tmp_path / REQUEST).write_text('{"from": 5, "steps": 9}')
    trace.look(pytest.fail)
    for step in (3, 4):
        trace.updated(step)
        assert isinstance(trace.range("forward"), nullcontext)
    trace.updated(5)
    with trace.range("forward"):
        pass
    assert trace.updated(6) is None
    path = trace.end(7)
    assert path == tmp_path / "profiles" / "steps-00000005-00000007.pt.trace.json"
    assert path.is_file()


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 0}', '{"steps": 1000}', '{"from": "x"}'])
def test_a_request_that_makes_no_sense_is_told_and_goes(tmp_path: Path, text: str) -> None:
    told: list[str] = []
    (tmp_path / REQUEST).write_text(text)
    Trace(tmp_path).look(told.append)
    assert len(told) == 1
    assert not (tmp_path / REQUEST).exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "profile: state the run's directory, or set DDP_CHECKPOINT_DIR\n"),
        (["/nowhere"], "profile: /nowhere is not the directory of a run\n"),
        (["--step=3"], "profile: unknown argument --step=3\n"),
    ],
)
def test_what_cannot_be_profiled(launcher: Launcher, arguments: list[str], sentence: str) -> None:
    gang = launcher.call("rank_processes:_command", ["profile", *arguments], world=None)
    assert gang.wait() == [2]
    assert gang.err(0) == sentence


def test_the_update_before_a_progress_line_is_timed_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    phases = Phases(torch.device("cpu"), 3, step=4)
    trace = Trace(None, phases)
    assert trace.seconds() == {}
    assert trace.range("forward") is trace.range("backward")
    trace.updated(5)
    for name in ("forward", "backward", "forward"):
        with trace.range(name):
            pass
    assert trace.seconds() == {"forward": 2.0, "backward": 1.0}
    trace.updated(6)
    with trace.range("forward"):
        pass
    assert trace.seconds() == {"forward": 2.0, "backward": 1.0}
