"""History of a run: bounded, continued over attempts, and harmless when the volume fails."""

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.observe import history_writer
from ddp_trainer.observe.events import EventLog
from ddp_trainer.observe.history_writer import HistoryWriter
from ddp_trainer.observe.reporter import _by_rank
from ddp_trainer.ranks.environment import Ranks
from ddp_wire.contract import HISTORY_FILE


def write(folder: Path, *events: tuple[str, float]) -> None:
    writer = HistoryWriter(folder)
    for kind, at in events:
        writer.write(kind, at, json.dumps({"event": kind, "time": at}) + "\n")
    writer.close()


def lines(folder: Path) -> list[str]:
    return (folder / HISTORY_FILE).read_text().splitlines()


def times(folder: Path, kind: str) -> list[float]:
    documents: list[dict[str, Any]] = [json.loads(line) for line in lines(folder) if line]
    return [document["time"] for document in documents if document["event"] == kind]


def test_each_event_is_one_history_line_and_attempts_append_to_the_file(tmp_path: Path) -> None:
    for attempt in (1, 2):
        log = EventLog(Ranks(), attempt, history=HistoryWriter(tmp_path))
        log.emit("start", total_steps=4)
        log.emit("warning", message="not kept")
        log.emit("progress", step=2, loss=float("nan"))
        log.close()
    found = [json.loads(line) for line in lines(tmp_path)]
    assert [(x["attempt"], x["event"]) for x in found] == [
        (1, "start"),
        (1, "progress"),
        (2, "start"),
        (2, "progress"),
    ]
    assert found[1]["loss"] is None


def test_incomplete_last_line_does_not_damage_the_next_one(tmp_path: Path) -> None:
    write(tmp_path, ("start", 1.0))
    with (tmp_path / HISTORY_FILE).open("a") as file:
        file.write('{"event": "prog')
    write(tmp_path, ("start", 9.0))
    assert lines(tmp_path)[1] == '{"event": "prog'
    assert json.loads(lines(tmp_path)[2])["time"] == 9.0


@pytest.mark.slow
def test_number_of_history_lines_grows_with_the_logarithm_of_the_run_time(tmp_path: Path) -> None:
    write(tmp_path, ("start", 0.0))
    # One report per second, for a day and in a later attempt for a second day.
    for day in (0, 1):
        writer = HistoryWriter(tmp_path)
        writer._queue.maxsize = 0
        for second in range(86_400):
            at = float(86_400 * day + second)
            writer.write("progress", at, json.dumps({"event": "progress", "time": at}) + "\n")
        writer._queue.put(None)
        assert writer._thread is not None
        writer._thread.join()
    found = times(tmp_path, "progress")
    early = [at for at in found if at < 86_400]
    late = [at for at in found if at >= 86_400]
    assert 5000 < len(early) < 25_000
    assert len(late) < 6000
    assert max(b - a for a, b in itertools.pairwise(late)) <= 36


def test_start_event_of_each_attempt_is_kept_in_any_long_run(tmp_path: Path) -> None:
    write(tmp_path, ("start", 0.0), ("start", 1e6), ("start", 1e6 + 1))
    assert len(lines(tmp_path)) == 3


def test_history_file_has_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "LARGEST_FILE", 1000)
    write(tmp_path, *(("start", float(second)) for second in range(100)))
    assert 900 < (tmp_path / HISTORY_FILE).stat().st_size <= 1000


def test_failing_volume_leaves_only_a_gap_in_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, list[int]()

    def write_half(file: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(file, data[: len(data) // 2])
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write_half)
    write(tmp_path, ("start", 1.0), ("start", 2.0), ("start", 3.0))
    assert json.loads(lines(tmp_path)[-1])["time"] == 3.0


def test_missing_run_directory_is_created(tmp_path: Path) -> None:
    write(tmp_path / "new", ("start", 1.0))
    assert times(tmp_path / "new", "start") == [1.0]


def test_hanging_volume_delays_the_end_of_a_run_only_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "_CLOSE_SECONDS", 0.05)
    release = threading.Event()

    def hang(*_: object) -> int:
        release.wait()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", hang)
    writer = HistoryWriter(tmp_path)
    for second in range(3000):
        writer.write("start", float(second), "{}\n")
    writer.close()
    assert writer._thread is not None
    assert writer._thread.is_alive()
    release.set()


def test_many_ranks_are_reported_by_their_spread() -> None:
    assert _by_rank([0.1, 0.2]) == [0.1, 0.2]
    assert _by_rank([0.1] * 40 + [0.5]) == {"min": 0.1, "median": 0.1, "max": 0.5, "slowest": 40}
