"""The judge of the random kills finds what it is there to find."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault_player import judge
from tests.fault_player.judge import Strike
from tests.fault_player.record import Life, read_lives
from tests.fault_player.report import number_and_fault

NOON = 1_772_366_400.0
"""2026-03-01T12:00:00Z."""


def entry(cause: str | None = "Application", reason: str = "RankFailed") -> dict[str, Any]:
    """An attempt that lived for a minute from noon."""
    return {
        "startTime": "2026-03-01T12:00:00Z",
        "endTime": "2026-03-01T12:01:00Z",
        "cause": cause,
        "reason": reason,
        "message": "told",
    }


def struck(kind: str, after_noon: float, attempt: int = 1, *, trained: bool = True) -> Strike:
    return Strike(1, kind, "somewhere", NOON + after_noon, attempt, trained)


def test_attempts_that_train_one_after_the_other_are_one_gang() -> None:
    assert not judge.two_gangs([Life(1, [1.0, 2.0]), Life(2), Life(3, [2.5])])


def test_an_attempt_that_trains_on_into_the_next_is_found() -> None:
    (found,) = judge.two_gangs([Life(1, [1.0, 3.0]), Life(2), Life(3, [2.5])])
    assert "attempt 1 still did updates 0.50 s after the first one of attempt 3" in found


@pytest.mark.parametrize(("resumed", "found"), [(20, 0), (30, 0), (10, 1), (None, 1)])
def test_an_attempt_must_not_go_back_behind_what_was_committed(
    resumed: int | None, found: int
) -> None:
    lives = [Life(1, saved=[10, 20], started=1.0), Life(2), Life(3, started=2.0)]
    lives[2].resumed_from = resumed
    assert len(judge.lost_steps(lives)) == found


def test_counters_must_lead_to_the_attempt() -> None:
    status = {"attempt": 4, "restarts": 1, "infrastructureRestarts": 1, "freeRestarts": 1}
    assert not judge.miscounted(status, free=1)
    assert judge.miscounted(status, free=0)
    assert judge.miscounted(status | {"attempt": 5}, free=1)


def test_an_attempt_that_ended_without_a_fault_is_found() -> None:
    assert judge.unexplained({1: entry()}, [], set())
    assert not judge.unexplained({1: entry()}, [], {1})
    assert judge.unexplained({1: entry()}, [struck("operator", 30)], set())
    assert judge.unexplained({1: entry()}, [struck("rank", 90, trained=False)], set())
    assert not judge.unexplained({1: entry()}, [struck("rank", 60)], set())


def test_a_kubelet_may_cost_an_attempt_later() -> None:
    assert not judge.unexplained({1: entry()}, [struck("kubelet", -30)], set())
    assert judge.unexplained({1: entry()}, [struck("kubelet", -90)], set())


def test_a_fault_must_end_the_attempt_that_it_hit_and_be_put_down_to_its_cause() -> None:
    assert judge.unexplained({}, [struck("rank", 60)], set())
    assert judge.unexplained({1: entry("Infrastructure")}, [struck("rank", 60)], set())
    assert judge.unexplained({1: entry()}, [struck("pod", 60)], set())
    assert not judge.unexplained({1: entry("Infrastructure")}, [struck("agent", 60)], set())


def test_a_life_is_read_from_what_rank_0_told(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "attempt-2" / "node-0" / "uid-2_x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    events = [
        {"event": "start", "time": 1.0, "rank": 0},
        {"event": "resume", "time": 1.1, "rank": 0, "step": 20},
        {"event": "progress", "time": 1.2, "rank": 0, "step": 21},
        {"event": "checkpoint", "time": 1.3, "rank": 0, "step": 30},
    ]
    lines = [json.dumps(event) for event in events]
    (folder / "stdout.log").write_text("\n".join([*lines, "a word", '{"event": "prog']))
    assert read_lives(tmp_path) == [Life(2, [1.2], [30], started=1.0, resumed_from=20)]


@pytest.mark.parametrize(
    ("test", "number", "fault"),
    [
        ("test_case_18_deleted_worker", "18", "deleted worker"),
        ("test_case_28_and_29_no_node", "28+29", "no node"),
        ("test_a_thing[x]", "-", "a thing[x]"),
    ],
)
def test_a_line_names_the_case_by_its_number(test: str, number: str, fault: str) -> None:
    assert number_and_fault(test) == (number, fault)
