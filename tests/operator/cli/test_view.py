"""What a person sees of a local run."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ddp_operator.api.status import ConditionType, DDPJobStatus, ProgressStatus
from ddp_operator.cli.view import View, status_line, summary_lines
from ddp_operator.reconcile.plan import Event, EventType
from tests.operator.support import NOW, condition


def status(reason: str | None = "Running", **fields: Any) -> DDPJobStatus:
    conditions = []
    if reason is not None:
        conditions = [condition(ConditionType.SUCCEEDED, "Unknown", reason)]
    return DDPJobStatus(conditions=conditions, **fields)


LINES: dict[str, tuple[DDPJobStatus, str]] = {
    "nothing known": (status(None), "Pending"),
    "starting": (status("Starting", ready="1/2"), "Starting  1/2 nodes ready"),
    "running": (
        status(
            ready="2/2",
            progress=ProgressStatus(summary="6/12 (50%)", loss="0.5", samples_per_second=80),
        ),
        "Running  step 6/12 (50%)  loss 0.5  80 samples/s",
    ),
    "measured": (
        status(progress=ProgressStatus(summary="6", metrics={"accuracy": "0.9"})),
        "Running  step 6  test accuracy 0.9",
    ),
    "ended without progress": (status("Failed", ready="0/2", completion_time=NOW), "Failed"),
}


@pytest.mark.parametrize(("found", "line"), LINES.values(), ids=LINES.keys())
def test_the_line_of_a_run(found: DDPJobStatus, line: str) -> None:
    assert status_line(found) == line


def test_what_a_finished_run_leaves() -> None:
    progress = ProgressStatus(step=12, samples_per_second=80, metrics={"accuracy": "0.9"})
    found = status("Completed", progress=progress, attempt=2, resumed_from_step=6)
    assert summary_lines(found, "/runs/step-12", Path("/runs/logs")) == [
        "test accuracy: 0.9",
        "steps: 12",
        "samples/s: 80",
        "attempts: 2",
        "resumed from step: 6",
        "checkpoint: /runs/step-12",
        "logs: /runs/logs",
    ]


def test_a_run_that_measured_and_saved_nothing_leaves_its_logs() -> None:
    found = summary_lines(status("Completed", attempt=1), None, Path("/runs/logs"))
    assert found == ["attempts: 1", "logs: /runs/logs"]


def shown(work: Any) -> list[str]:
    """Lines that a view prints where there is no terminal, without the clock before them."""
    out = io.StringIO()
    view = View("digits", Console(file=out, width=40))
    work(view)
    view.close()
    return [line.partition(" ")[2] for line in out.getvalue().splitlines()]


def test_the_same_line_is_printed_once() -> None:
    def work(view: View) -> None:
        for ready in ("0/2", "0/2", "1/2"):
            view.status(status("Starting", ready=ready))

    assert shown(work) == ["Starting  0/2 nodes ready", "Starting  1/2 nodes ready"]


def test_a_message_is_printed_as_it_is_however_long_and_whatever_brackets_it_holds() -> None:
    message = "rank 0 failed: KeyError: [red] " + "x" * 100
    event = Event(EventType.WARNING, "Restarting", message)
    assert shown(lambda view: view.event(event)) == [f"Restarting: {message}"]


def test_on_a_terminal_there_is_one_live_line() -> None:
    out = io.StringIO()
    view = View("digits", Console(file=out, force_terminal=True, width=100))
    progress = ProgressStatus(summary="6/12 (50%)", step=6, total_steps=12)
    view.status(status(progress=progress))
    view.close()
    assert "Running  step 6/12 (50%)" in out.getvalue()
