"""Tests of a process that writes checkpoints and ends too early, as the first rank sees it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp_trainer.checkpoint import background
from ddp_trainer.checkpoint.background import (
    BUSY,
    TROUBLED,
    Background,
    BackgroundProcess,
)
from ddp_trainer.checkpoint.background_process import SaveOrder, Status
from ddp_trainer.run.writing import wait_until_out

ORDER = SaveOrder(
    directory="/run", name="step-00000005.attempt-1", parts=1, claim={"save": "01"}, slots=[]
)
ENDS = [sys.executable, "-S", "-c", "import sys; sys.stdin.readline(); sys.exit(3)"]
"""A process that ends before it writes, as one whose environment is damaged."""
NOT_YET = f"{ORDER.name} is not written to {ORDER.directory} yet:"
AGAIN = "training continues, and the write is tried again"


def line(status: Status) -> str:
    return json.dumps(asdict(status))


def reports(*statuses: Status, then: str = "") -> list[str]:
    """Return the command of a process that reports statuses, runs `then`, and ends with code 3."""
    lines = "".join(line(status) + "\n" for status in statuses)
    code = f"print({lines!r}, end='', flush=True); {then or 'pass'}; sys.exit(3)"
    start = "import sys, time; sys.stdin.readline()"  # The test must be able to write the order.
    return [sys.executable, "-S", "-c", f"{start}; {code}"]


def shortest_pause(times: list[float]) -> float:
    return min(after - before for before, after in pairwise(times))


def writing(count: int) -> Status:
    return Status("01", "writing", count)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times of the starts of processes, which grows."""
    times: list[float] = []
    real = subprocess.Popen

    def popen(*arguments: Any, **named: Any) -> Any:
        times.append(time.monotonic())
        return real(*arguments, **named)

    monkeypatch.setattr(subprocess, "Popen", popen)
    return times


@pytest.fixture
def process() -> Iterator[BackgroundProcess]:
    process = BackgroundProcess()
    yield process
    process.cancel()


def poll_until(process: BackgroundProcess, ready: Callable[[], bool]) -> list[str]:
    """Poll a process until a condition holds. Return its warnings."""
    warnings, end = [], time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        warnings.append(process.warning())
        time.sleep(0.01)
    return [warning for warning in warnings if warning]


def test_process_that_always_ends_is_restarted_with_pauses_and_counts_as_troubled(
    process: BackgroundProcess, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_COMMAND", ENDS)
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.5)
    process.start(ORDER)
    assert process.state() == BUSY
    warnings = poll_until(process, lambda: process.state() == TROUBLED and len(starts) >= 4)
    assert warnings == [
        f"the process that writes {ORDER.name} ended with exit code 3; a new one writes it",
        f"{NOT_YET} the process that writes it ended with exit code 3; {AGAIN}",
    ]
    assert shortest_pause(starts[1:]) >= 0.5


def test_process_that_cannot_be_started_again_is_tried_with_pauses(
    process: BackgroundProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_COMMAND", ENDS)
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.1)
    process.start(ORDER)
    tries: list[float] = []

    def popen(*_: Any, **__: Any) -> Any:
        tries.append(time.monotonic())
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    warnings = poll_until(process, lambda: len(tries) >= 3)
    reason = "[Errno 11] Resource temporarily unavailable"
    (warning,) = warnings
    assert warning == f"{NOT_YET} the process that writes it cannot be started: {reason}; {AGAIN}"
    assert process.state() == TROUBLED
    assert shortest_pause(tries) >= 0.1


def test_new_process_that_has_not_written_more_does_not_start_the_clock_again(
    process: BackgroundProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(background, "_COMMAND", reports(writing(0), writing(100)))
    process.start(ORDER)
    (dead,) = [process._process]
    assert dead is not None
    dead.wait()
    slow = f"[print({line(writing(50))!r}, flush=True) or time.sleep(0.1) for _ in range(100)]"
    monkeypatch.setattr(background, "_COMMAND", reports(writing(0), then=slow))
    first, second = poll_until(process, lambda: len(process._announced) > 0)
    assert first.endswith("ended with exit code 3; a new one writes it")
    reason = "its process ended with exit code 3, and a new one has not written more yet"
    assert second == f"{NOT_YET} {reason}; {AGAIN}"
    assert process.state() == TROUBLED


def test_new_process_that_writes_more_is_busy(
    process: BackgroundProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(background, "_COMMAND", ENDS)
    process.start(ORDER)
    poll_until(process, lambda: process.state() == TROUBLED)
    more = reports(writing(0), writing(100), then="time.sleep(60)")
    monkeypatch.setattr(background, "_COMMAND", more)
    poll_until(process, lambda: process.state() == BUSY)


def test_save_that_is_out_is_no_trouble_if_its_process_has_ended(
    process: BackgroundProcess, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_COMMAND", reports(Status("01", "done", 9)))
    process.start(ORDER)
    (ended,) = [process._process]
    assert ended is not None
    ended.wait()
    poll_until(process, lambda: process._process is None)
    assert process.state() == BUSY
    assert process.warning() is None
    assert (process.finished(), len(starts)) == (Status("01", "done", 9), 1)


def test_line_that_is_no_status_is_ignored(
    process: BackgroundProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = f"print('{{'); print('[]'); print({line(Status('01', 'done'))!r}, flush=True)"
    monkeypatch.setattr(background, "_COMMAND", reports(writing(1), then=then))
    process.start(ORDER)
    assert poll_until(process, lambda: process._status.state == "done") == []


def required_save(own: Background) -> tuple[bool, list[str], list[int]]:
    """Return the result of the wait before a required save, its warnings, and what it gives up."""
    warnings: list[str] = []
    given_up: list[int] = []
    run: Any = SimpleNamespace(
        learner=SimpleNamespace(device=torch.device("cpu")),
        background=own,
        position=SimpleNamespace(step=9),
        ranks=SimpleNamespace(is_first=True),
        report=SimpleNamespace(warn=warnings.append, note=warnings.append),
        checkpoints=SimpleNamespace(abandon=given_up.append),
    )
    return wait_until_out(run, required=True), warnings, given_up


def test_required_save_gives_up_one_whose_process_always_ends(
    tmp_path: Path, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_COMMAND", ENDS)
    monkeypatch.setattr(background, "RESTART_SECONDS", 60.0)
    own = Background(step=5)
    own.process.start(ORDER.model_copy(update={"directory": str(tmp_path)}))
    begin = time.monotonic()
    may_write, warnings, given_up = required_save(own)
    assert time.monotonic() - begin < background.RESTART_SECONDS
    assert (may_write, given_up, len(starts)) == (True, [5], 2)
    assert len(warnings) <= 3
    assert warnings[-1] == (
        "the checkpoint of step 5 is given up, because it cannot be written in time"
    )
