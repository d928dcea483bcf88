"""Output of a local run."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddp_operator.api.goodput import GoodputStatus
from ddp_operator.api.status import CheckpointStatus, ConditionType, DDPJobStatus, ProgressStatus
from ddp_operator.cli.view import (
    View,
    goodput_line,
    live_line,
    print_facts,
    status_line,
    summary_lines,
)
from ddp_operator.reconcile.plan import Event, EventType
from tests.operator.support import NOW, condition


def status(reason: str | None = "Running", **fields: Any) -> DDPJobStatus:
    conditions = []
    if reason is not None:
        conditions = [condition(ConditionType.SUCCEEDED, "Unknown", reason)]
    return DDPJobStatus(conditions=conditions, **fields)


LINES: dict[str, tuple[DDPJobStatus, str]] = {
    "no status": (status(None), "Pending"),
    "starting": (status("Starting", ready="1/2"), "Starting  1/2 nodes ready"),
    "running": (
        status(
            ready="2/2",
            progress=ProgressStatus(summary="6/12 (50%)", loss="0.5", samples_per_second=80),
        ),
        "Running  step 6/12 (50%)  loss 0.5  80 samples/s",
    ),
    "with metrics": (
        status(progress=ProgressStatus(summary="6", metrics={"accuracy": "0.9"})),
        "Running  step 6  test accuracy 0.9",
    ),
    "ended without progress": (status("Failed", ready="0/2", completion_time=NOW), "Failed"),
}


@pytest.mark.parametrize(("found", "line"), LINES.values(), ids=LINES.keys())
def test_status_line_shows_the_state_of_the_run(found: DDPJobStatus, line: str) -> None:
    assert status_line(found) == line


def test_summary_of_a_finished_run_shows_metrics_and_checkpoint() -> None:
    progress = ProgressStatus(step=12, samples_per_second=80, metrics={"accuracy": "0.9"})
    goodput = GoodputStatus(percent="90.0%", training_milliseconds=9000, starting_milliseconds=1000)
    found = status(
        "Completed",
        progress=progress,
        attempt=2,
        resumed_from_step=6,
        goodput=goodput,
        last_checkpoint=CheckpointStatus(step=12, path=str(Path.cwd() / "a/step-12"), time=NOW),
    )
    assert summary_lines(found, Path("/runs/logs")) == [
        "test accuracy: 0.9",
        "steps: 12",
        "samples/s: 80",
        "attempts: 2",
        "resumed from step: 6",
        "goodput: 90.0% (training 9 s, starting 1 s)",
        "checkpoint: a/step-12",
        "logs: /runs/logs",
    ]


def test_summary_without_metrics_and_checkpoint_shows_the_path_of_the_logs() -> None:
    found = summary_lines(status("Completed", attempt=1), Path("/runs/logs"))
    assert found == ["attempts: 1", "logs: /runs/logs"]


def test_goodput_line_shows_training_first_and_then_the_largest_buckets() -> None:
    goodput = GoodputStatus(
        percent="48.0%",
        training_milliseconds=92_000,
        starting_milliseconds=8_000,
        recovering_milliseconds=100_000,
        checkpoint_stall_milliseconds=1_500,
        data_wait_milliseconds=100,
    )
    assert goodput_line(status(goodput=goodput)) == (
        "goodput: 48.0% (training 1 min 32 s, recovering 1 min 40 s, starting 8 s,"
        " checkpoint stall 1.5 s)"
    )


def test_run_without_counted_time_has_no_goodput_line() -> None:
    assert goodput_line(status()) is None
    assert goodput_line(status(goodput=GoodputStatus())) is None


def printed_lines(work: Any) -> list[str]:
    """Return the lines that a view prints without a terminal, without the leading time."""
    out = io.StringIO()
    view = View("digits", Console(file=out, width=40))
    work(view)
    view.close()
    return [line.partition(" ")[2] for line in out.getvalue().splitlines()]


def test_unchanged_line_is_not_printed_again() -> None:
    def work(view: View) -> None:
        for ready in ("0/2", "0/2", "1/2"):
            view.status(status("Starting", ready=ready))

    assert printed_lines(work) == ["Starting  0/2 nodes ready", "Starting  1/2 nodes ready"]


def test_message_is_printed_without_line_wrap_and_without_markup() -> None:
    message = "rank 0 failed: KeyError: [red] " + "x" * 100
    event = Event(EventType.WARNING, "Restarting", message)
    assert printed_lines(lambda view: view.event(event)) == [f"Restarting: {message}"]


def test_terminal_shows_one_live_line() -> None:
    out = io.StringIO()
    view = View("digits", Console(file=out, force_terminal=True, width=100))
    progress = ProgressStatus(summary="6/12 (50%)", step=6, total_steps=12)
    view.status(status(progress=progress))
    view.close()
    assert "Running  step 6/12 (50%)" in out.getvalue()


@pytest.mark.parametrize("width", [80, 140])
def test_bar_fills_the_rest_of_the_terminal(width: int) -> None:
    out = io.StringIO()
    view = View("digits", Console(file=out, force_terminal=True, width=width, color_system=None))
    view.status(status("Starting", ready="1/2"))
    view.close()
    line = out.getvalue().rpartition("\x1b[2K")[2].splitlines()[0]
    rest = " 0:00:00 Starting  1/2 nodes ready"
    assert line == "digits ".ljust(width - len(rest), "━") + rest


def test_printed_facts_wrap_after_a_word_and_never_inside_a_path() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None)
    path = "checkpoint: " + "a/long/path" * 5
    print_facts(console, ["goodput: 90.0% (training 9 s, queued 710 ms)", path])
    first, second, *rest = out.getvalue().splitlines()
    assert (first.rstrip(), second.rstrip()) == (
        "  goodput: 90.0% (training 9 s, queued",
        "  710 ms)",
    )
    assert rest == [f"  {path}"]


def test_live_line_shows_the_remaining_time_and_fits_80_columns() -> None:
    progress = ProgressStatus(
        summary="170/2400 (7%)", loss="0.001658", samples_per_second=2801, eta_seconds=204
    )
    found = status(progress=progress)
    line = live_line(found, wide=False)
    assert line == "Running  step 170/2400 (7%)  loss 0.001658  3 min 24 s left"
    assert len(f"digits {'━' * 5} 0:01:12 {line}") <= 80
    assert "  2801 samples/s  3 min 24 s left" in live_line(found, wide=True)
    assert "left" not in status_line(found)
    ended = status("Completed", progress=progress, completion_time=NOW)
    assert "left" not in live_line(ended, wide=True)
