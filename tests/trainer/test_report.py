"""Reports of a plain script to its job, and the examples of docs/use/command-reports.md."""

import atexit
import json
import re
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ddp_operator.report.history import read_history
from ddp_trainer import report
from ddp_wire.messages import LocalHeartbeat
from tests.trainer.rank_processes import Launcher


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the heartbeats of attempt 2, whose rank 0 is this process."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DDP_BEATS_DIR", str(tmp_path / "beats"))
    monkeypatch.setenv("DDP_ATTEMPT", "2")
    monkeypatch.delenv("DDP_CHECKPOINT_DIR", raising=False)
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    report._reporter.cache_clear()
    report._stop.cache_clear()
    yield tmp_path / "beats"
    signal.signal(signal.SIGTERM, handler)
    if (reporter := report._reporter()) is not None:
        atexit.unregister(reporter._flush)
    report._reporter.cache_clear()
    report._stop.cache_clear()


def written(beats: Path, rank: int = 0) -> LocalHeartbeat:
    return LocalHeartbeat.model_validate_json((beats / f"{rank}.json").read_bytes())


def test_history_of_a_users_script_has_the_values_that_the_charts_show(
    beats: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = beats.parent / "run"
    monkeypatch.setenv("DDP_CHECKPOINT_DIR", str(run))
    # The history leaves out events that follow each other too closely.
    monkeypatch.setattr("time.time", lambda: 1e9 + clock.now)
    report.checkpoint("/c/step-100", 100)
    report.progress(100, total=1000)
    clock.now += 10
    report.progress(120, loss=0.25, learning_rate=0.5, accuracy=0.75)
    report.checkpoint("/c/step-120", 120)
    clock.now += 10
    report.progress(140, loss=float("nan"))
    reporter = report._reporter()
    assert reporter is not None
    reporter._flush()
    lines = (run / "history.jsonl").read_bytes().splitlines()
    found = read_history(lines)
    assert (found.skipped, [json.loads(text)["event"] for text in lines][:2]) == (
        0,
        ["start", "resume"],
    )
    (attempt,) = found.attempts
    assert (attempt.number, attempt.resumed_from, attempt.world_size) == (2, 100, 1)
    assert [(p.step, p.loss, p.learning_rate) for p in found.points] == [
        (120, 0.25, 0.5),
        (140, None, 0.5),
    ]
    assert found.points[0].total_steps == 1000
    assert [save.step for save in found.saves] == [120]
    assert found.evaluations[0].metrics == {"accuracy": 0.75}


def test_report_progress_writes_the_newest_values(beats: Path, clock: Clock) -> None:
    report.progress(100, total=1000, epoch=1)
    clock.now += 10
    weight = torch.tensor(0.5, requires_grad=True)
    graph = weakref.ref(loss := weight * weight)
    report.progress(120, loss=loss, learning_rate=0.5, accuracy=0.75)
    del loss
    assert graph() is None, "a loss must not keep the graph of a step"
    found = written(beats)
    assert (found.attempt, found.rank, found.step, found.resumed_from) == (2, 0, 120, 100)
    assert found.phase == "Training"
    assert found.joined_at
    assert found.first_step_at
    assert found.progress
    shown = found.progress.model_dump(exclude_none=True)
    assert shown == {
        "step": 120,
        "total_steps": 1000,
        "epoch": 1,
        "loss": 0.25,
        "learning_rate": 0.5,
        "eta_seconds": 440,
        "metrics": {"accuracy": 0.75},
    }


def test_progress_reports_are_written_at_most_twice_a_second(
    beats: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    report.progress(0)
    report.progress(1)
    monkeypatch.setattr(
        "ddp_trainer.observe.heartbeats.write_heartbeat",
        lambda _, heartbeat: steps.append(heartbeat.step),
    )
    for step in range(2, 1026):
        clock.now += 1 / 1024
        report.progress(step, loss=1.0)
    assert steps == [513, 1025]
    report.progress(1026)
    reporter = report._reporter()
    assert reporter
    reporter._flush()
    assert steps[-1] == 1026, "the last values are written at the end"
    assert written(beats).step == 1


def test_checkpoint_reported_before_any_progress_is_the_resumed_one(
    beats: Path, clock: Clock
) -> None:
    report.checkpoint(Path("/c/step-40"), 40)
    assert written(beats).resumed_from == 40
    report.progress(40)
    report.progress(41)
    report.checkpoint("/c/step-41", 41)
    found = written(beats)
    assert (found.resumed_from, found.step) == (40, 41)
    assert found.checkpoint
    assert (found.checkpoint.step, found.checkpoint.path) == (41, "/c/step-41")
    assert clock.now == 1000.0


def test_first_attempt_that_starts_at_the_beginning_does_not_count_as_resumed(
    beats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDP_ATTEMPT", "1")
    report.progress(0)
    assert written(beats).resumed_from is None


def test_ranks_other_than_0_write_their_step_but_no_progress(
    beats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    report.progress(7, loss=1.0)
    found = written(beats, rank=1)
    assert (found.rank, found.step, found.progress) == (5, 7, None)


def test_unusable_heartbeat_directory_raises_no_error(beats: Path, tmp_path: Path) -> None:
    (tmp_path / "beats").write_text("a file")
    report.progress(1)
    report.checkpoint("/c", 1)
    assert beats.read_text() == "a file"


def test_reported_value_that_is_no_number_is_left_out_with_one_warning(
    beats: Path, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in range(3):
        clock.now += 1.0
        report.progress(step, loss=0.5, epoch=float("nan"), note="good", grid=torch.zeros(3))
    progress = written(beats).progress
    assert progress
    assert (progress.loss, progress.epoch, progress.metrics) == (0.5, None, {})
    assert capfd.readouterr().err.splitlines() == [
        "warning: report: the metric note must be a number, not str",
        "warning: report: the metric grid must be a number, not Tensor",
    ]


@pytest.mark.parametrize("step", [1.5, "7", None])
def test_reported_step_must_be_an_integer(step: object) -> None:
    with pytest.raises(TypeError, match="report: step must be an integer, not"):
        report.progress(step)  # type: ignore[arg-type]


def test_reported_step_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match=r"report: step must be from 0 to 2\*\*53, not -1"):
        report.checkpoint("/c", -1)


def test_should_stop_returns_true_after_sigterm(beats: Path) -> None:
    assert not report.should_stop()
    signal.raise_signal(signal.SIGTERM)
    assert report.should_stop()
    assert not beats.exists(), "a script may use this function alone"


def test_report_does_nothing_outside_of_a_job_and_imports_no_torch() -> None:
    code = (
        "import sys, signal; from ddp_trainer import report; report.progress(1, loss=2.0);"
        "report.checkpoint('/c', 1); assert not report.should_stop();"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL;"
        "print([m for m in ('torch', 'pydantic', 'numpy') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


def test_should_stop_is_true_on_all_ranks_at_the_same_step(
    launcher: Launcher, tmp_path: Path
) -> None:
    environ = {"DDP_BEATS_DIR": str(tmp_path / "beats"), "DDP_ATTEMPT": "1"}
    gang = launcher.call("probes:report_until_stopped", None, world=2, **environ)
    gang.wait_until((tmp_path / "beats" / "1.json").exists)
    gang.signal(1, signal.SIGTERM)
    assert gang.wait() == [85, 85], gang.err(0)
    assert gang.out(0) == gang.out(1)
    assert int(gang.out(0)) > 0
    last = json.loads((tmp_path / "beats" / "0.json").read_text())
    assert last["progress"]["step"] == int(gang.out(0))


def example(number: int) -> str:
    """Return an example of docs/use/command-reports.md."""
    page = Path(__file__).parents[2] / "docs" / "use" / "command-reports.md"
    text = page.read_text(encoding="utf-8")
    found: list[str] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return found[number]


def test_plain_script_of_the_documentation_reports_and_resumes(
    beats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "claim" / "run" / "state.pt"
    monkeypatch.setenv("DDP_CHECKPOINT_DIR", str(file.parent))
    script = compile(example(0), "docs/use/command-reports.md", "exec")
    assert not report.should_stop()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        exec(script, {})  # noqa: S102 - the example is a script
    assert stopped.value.code == 85
    found = written(beats)
    assert found.checkpoint
    assert (found.step, found.checkpoint.path) == (1, str(file))
    report._stop.cache_clear()
    report._reporter.cache_clear()
    exec(script, {})  # noqa: S102
    report._reporter()._flush()  # type: ignore[union-attr]
    found = written(beats)
    assert (found.resumed_from, found.step) == (1, 1000)
    assert found.progress
    assert found.progress.loss is not None


def test_callback_of_the_documentation_reports_for_a_hugging_face_trainer(
    beats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = types.ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    names: dict[str, type] = {}
    exec(example(1), names)  # noqa: S102
    callback = names["ReportCallback"]()
    state = types.SimpleNamespace(global_step=20, max_steps=40)
    control = types.SimpleNamespace(should_save=False, should_training_stop=False)
    args = types.SimpleNamespace(output_dir="/out")
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    assert not control.should_training_stop
    signal.raise_signal(signal.SIGTERM)
    state.global_step = 21
    callback.on_step_end(args, state, control)
    assert control.should_training_stop
    assert control.should_save
    callback.on_log(args, state, control, logs={"loss": 0.5, "learning_rate": 0.1, "note": "x"})
    callback.on_save(args, state, control)
    found = written(beats)
    assert (found.step, found.resumed_from) == (21, 20)
    assert found.progress
    assert (found.progress.loss, found.progress.total_steps) == (0.5, 40)
    assert found.checkpoint
    assert found.checkpoint.path == "/out/checkpoint-21"
