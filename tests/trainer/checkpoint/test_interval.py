"""Tests of the interval between two checkpoints, which follows cost and failures."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.checkpoint.interval import (
    FIRST_SECONDS,
    LONGEST,
    SHORTEST,
    Experience,
    Interval,
    chosen,
    read_experience,
)
from ddp_trainer.checkpoint.manager import CheckpointManager
from ddp_trainer.config import CheckpointConfig
from ddp_wire.contract import HISTORY_FILE

DAY = 86_400.0


def test_interval_follows_young_and_daly_within_bounds() -> None:
    assert chosen(2.0, DAY) == 588
    assert chosen(2.0, DAY / 4) == 294
    assert chosen(8.0, DAY) == 1176
    assert chosen(0.0, DAY) == SHORTEST
    assert chosen(1e6, DAY) == LONGEST


def test_interval_is_that_of_the_smallest_loss() -> None:
    """The formula agrees with a search for the smallest sum of both losses."""
    cost, between = 3.0, 40_000.0

    def lost(interval: int) -> float:
        return cost / interval + interval / 2 / between

    best = min(range(SHORTEST, LONGEST), key=lost)
    assert abs(chosen(cost, between) - best) <= 1


def test_first_interval_is_short_until_a_save_is_measured() -> None:
    interval = Interval()
    assert interval.seconds == FIRST_SECONDS
    sentence = interval.measured(2.0)
    assert sentence == (
        "a checkpoint is saved every 588 s (checkpoint.every_seconds: auto), because a save takes"
        " 2 s and a failure is expected every 24 h, after 0 failures so far"
    )
    assert interval.seconds == 588


def test_sentence_comes_only_after_a_clear_change() -> None:
    interval = Interval()
    said = [interval.measured(cost) is not None for cost in (2.0, 2.1, 2.0, 40.0, 40.0, 40.0, 40.0)]
    assert said == [True, False, False, False, False, True, False]


def events(*parts: tuple[int, str, float, dict[str, Any]]) -> str:
    return "".join(
        json.dumps({"event": kind, "attempt": attempt, "time": at} | fields) + "\n"
        for attempt, kind, at, fields in parts
    )


def test_history_gives_failures_time_and_costs(tmp_path: Path) -> None:
    text = events(
        (0, "start", 100, {}),
        (0, "checkpoint", 150, {"seconds": 0.5}),
        (0, "progress", 200, {}),
        (1, "start", 300, {}),
        (1, "stop", 350, {}),
        (2, "start", 400, {}),
        (2, "checkpoint", 450, {"seconds": 1.5}),
    )
    (tmp_path / HISTORY_FILE).write_text("damaged\n" + text + '{"event": "progress", "time": 4')
    assert read_experience(tmp_path) == Experience(seconds=200, failures=2, costs=(0.5, 1.5))


@pytest.mark.parametrize("kind", ["none", "pipe", "link", "numbers"])
def test_unusable_history_is_no_experience(tmp_path: Path, kind: str) -> None:
    path = tmp_path / HISTORY_FILE
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "numbers":
        path.write_text('7\n[]\n{"event": "start", "time": "x", "attempt": 1}\n{"event": []}\n')
    assert read_experience(tmp_path) == Experience()


def test_failures_of_earlier_attempts_shorten_the_interval(tmp_path: Path) -> None:
    costs = [(n, "checkpoint", 1000.0 * n + 5, {"seconds": 2.0}) for n in range(8)]
    starts: list[tuple[int, str, float, dict[str, float]]] = [
        (n, "start", 1000.0 * n, {}) for n in range(8)
    ]
    parts = [part for pair in zip(starts, costs, strict=True) for part in pair]
    (tmp_path / HISTORY_FILE).write_text(events(*parts))
    manager = CheckpointManager(CheckpointConfig(directory=str(tmp_path)))
    manager.open(9, {})
    assert manager.interval_seconds == chosen(2.0, (DAY + 8 * 5) / 9)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [({"every_seconds": 77}, 77), ({"every_steps": 5}, None), ({"every_seconds": None}, None)],
)
def test_stated_interval_stays(settings: dict[str, Any], seconds: int | None) -> None:
    manager = CheckpointManager(CheckpointConfig(directory="/nowhere", **settings))
    assert manager.measured(1000.0) is None
    assert manager.interval_seconds == seconds
