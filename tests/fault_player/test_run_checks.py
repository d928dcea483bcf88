"""Tests of the checks that follow the random kills."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault_player import run_checks
from tests.fault_player.record import AttemptRecord, read_attempts
from tests.fault_player.run_checks import InjectedFault

NOON = 1_772_366_400.0
"""2026-03-01T12:00:00Z in Unix seconds."""


def entry(cause: str | None = "Application", reason: str = "RankFailed") -> dict[str, Any]:
    """Return an attempt that lasted one minute from noon."""
    return {
        "startTime": "2026-03-01T12:00:00Z",
        "endTime": "2026-03-01T12:01:00Z",
        "cause": cause,
        "reason": reason,
        "message": "rank 1 exited 1",
    }


def fault(kind: str, after_noon: float, attempt: int = 1, *, trained: bool = True) -> InjectedFault:
    return InjectedFault(1, kind, "somewhere", NOON + after_noon, attempt, trained)


def test_consecutive_attempts_do_not_overlap() -> None:
    assert not run_checks.overlapping_attempts(
        [AttemptRecord(1, [1.0, 2.0]), AttemptRecord(2), AttemptRecord(3, [2.5])]
    )


def test_check_finds_attempt_that_overlaps_the_next() -> None:
    (found,) = run_checks.overlapping_attempts(
        [AttemptRecord(1, [1.0, 3.0]), AttemptRecord(2), AttemptRecord(3, [2.5])]
    )
    assert "attempt 1 still did updates 0.50 s after the first update of attempt 3" in found


@pytest.mark.parametrize(("resumed", "found"), [(20, 0), (30, 0), (10, 1), (None, 1)])
def test_check_finds_attempt_that_resumed_before_the_committed_step(
    resumed: int | None, found: int
) -> None:
    attempts = [
        AttemptRecord(1, saved=[10, 20], started=1.0),
        AttemptRecord(2),
        AttemptRecord(3, started=2.0),
    ]
    attempts[2].resumed_from = resumed
    assert len(run_checks.lost_steps(attempts)) == found


def test_check_finds_counters_that_do_not_sum_to_the_attempt() -> None:
    status = {"attempt": 4, "restarts": 1, "infrastructureRestarts": 1, "freeRestarts": 1}
    assert not run_checks.wrong_counters(status, free=1)
    assert run_checks.wrong_counters(status, free=0)
    assert run_checks.wrong_counters(status | {"attempt": 5}, free=1)


def test_check_finds_attempt_that_ended_without_a_fault() -> None:
    assert run_checks.unexplained_ends({1: entry()}, [], set())
    assert not run_checks.unexplained_ends({1: entry()}, [], {1})
    assert run_checks.unexplained_ends({1: entry()}, [fault("operator", 30)], set())
    assert run_checks.unexplained_ends({1: entry()}, [fault("rank", 90, trained=False)], set())
    assert not run_checks.unexplained_ends({1: entry()}, [fault("rank", 60)], set())


def test_killed_kubelet_may_end_an_attempt_up_to_a_minute_later() -> None:
    assert not run_checks.unexplained_ends({1: entry()}, [fault("kubelet", -30)], set())
    assert run_checks.unexplained_ends({1: entry()}, [fault("kubelet", -90)], set())


def test_check_finds_fault_without_effect_or_with_the_wrong_cause() -> None:
    assert run_checks.unexplained_ends({}, [fault("rank", 60)], set())
    assert run_checks.unexplained_ends({1: entry("Infrastructure")}, [fault("rank", 60)], set())
    assert run_checks.unexplained_ends({1: entry()}, [fault("pod", 60)], set())
    assert not run_checks.unexplained_ends(
        {1: entry("Infrastructure")}, [fault("agent", 60)], set()
    )


def test_attempt_record_is_read_from_the_log_of_rank_0(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "attempt-2" / "node-0" / "uid-2_x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    events = [
        {"event": "start", "time": 1.0, "rank": 0},
        {"event": "resume", "time": 1.1, "rank": 0, "step": 20},
        {"event": "progress", "time": 1.2, "rank": 0, "step": 21},
        {"event": "checkpoint", "time": 1.3, "rank": 0, "step": 30},
    ]
    lines = [json.dumps(event) for event in events]
    (folder / "stdout.log").write_text("\n".join([*lines, "plain text", '{"event": "prog']))
    assert read_attempts(tmp_path) == [AttemptRecord(2, [1.2], [30], started=1.0, resumed_from=20)]
