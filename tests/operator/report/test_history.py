"""Reading of events: from a history, from logs, and from hostile lines."""

import json
from typing import Any

import pytest

from ddp_operator.report.history import MOST_METRICS, MOST_TEXT, RankSpread
from tests.operator.report.support import START, history, line, progress, two_attempts


def test_events_of_all_attempts_are_read() -> None:
    found = history(*two_attempts())
    assert [attempt.number for attempt in found.attempts] == [1, 2]
    assert found.attempts[1].resumed_from == 20
    assert found.attempts[1].last_event == "summary"
    assert [(p.time - START, p.step, p.attempt) for p in found.points] == [
        (10, 10, 0),
        (20, 20, 0),
        (31, 30, 0),
        (50, 30, 1),
    ]
    assert found.points[0].own_seconds == RankSpread(0.2, 0.4, 0.6, 1, (0.2, 0.6))
    assert found.evaluations[0].metrics == {"loss": 0.5, "accuracy": 0.75}
    assert (found.saves[0].step, found.saves[0].seconds) == (20, 1.0)
    assert found.skipped == 0


def test_events_are_found_among_other_lines_of_a_log() -> None:
    event = progress(1, 5)
    found = history(
        b"ddp-agent: attempt 1: torchrun --nnodes=2\n",
        b"[rank 0] " + event,
        b"[rank 1] print of a user\n",
        b'a user prints {"event": "progress"}\n',
        b"\xff\xfe\n",
    )
    assert [point.step for point in found.points] == [5]
    assert found.skipped == 0


TEXT_LOG = b"""\
ddp-agent: attempt 1: torchrun --nnodes=2
[rank 0] 2026-11-25T03:56:40Z [attempt 1] start: 2 ranks on cpu, ddp, 100 updates of 8 samples
[rank 1] 2026-11-25T03:56:49Z [attempt 1] rank 1: step 9 of 100: loss 9, lr 0.1, 500 samples/s
[rank 0] 2026-11-25T03:56:50Z [attempt 1] step 10 of 100: loss 0.5, lr 0.1, 500 samples/s, 9 s left
[rank 0] 2026-11-25T03:57:01Z [attempt 1] checkpoint of step 20 in 1.5 s: /c
[rank 0] 2026-11-25T03:57:20Z [attempt 2] start: 2 ranks on cpu, ddp, 100 updates of 8 samples
[rank 0] 2026-11-25T03:57:20Z [attempt 2] resumed at step 20 of 100
[rank 0] 2026-11-25T03:57:32Z [attempt 2] evaluation at step 30: accuracy 0.75 (2 s)
[rank 0] 2026-11-25T03:57:33Z [attempt 2] summary: 30 of 100 updates, 240 samples in 3 s
"""


def test_events_are_read_from_a_log_of_text_lines() -> None:
    found = history(*TEXT_LOG.splitlines(keepends=True))
    assert [(one.number, one.world_size) for one in found.attempts] == [(1, 2), (2, 2)]
    assert found.attempts[1].resumed_from == 20
    assert found.attempts[1].last_event == "summary"
    assert [(p.time - START, p.step, p.loss, p.rate) for p in found.points] == [(10, 10, 0.5, 500)]
    assert [(s.step, s.seconds) for s in found.saves] == [(20, 1.5)]
    assert [(e.step, dict(e.metrics)) for e in found.evaluations] == [(30, {"accuracy": 0.75})]
    assert found.skipped == 0


def test_events_of_other_ranks_are_ignored() -> None:
    other = json.loads(progress(1, 5)) | {"rank": 3}
    assert history(json.dumps(other).encode()).points == []


def test_incomplete_history_line_is_skipped_and_counted() -> None:
    found = history(progress(1, 5)[:40], b"\n", progress(2, 6))
    assert [point.step for point in found.points] == [6]
    assert found.skipped == 1


def test_second_start_event_with_the_same_number_begins_another_attempt() -> None:
    found = history(
        line("start", 0, world_size=1), progress(1, 5), line("start", 50), progress(51, 9)
    )
    assert [attempt.number for attempt in found.attempts] == [1, 1]
    assert [point.attempt for point in found.points] == [0, 1]
    assert found.attempts[0].end == START + 1


@pytest.mark.parametrize(
    "value", [None, "high", True, [], {}, float("nan"), float("inf"), 10**400, 1e308]
)
def test_field_that_is_not_a_finite_number_is_absent(value: Any) -> None:
    found = history(progress(1, 5, loss=value, samples_per_second=value, lr=value))
    (point,) = found.points
    assert (point.loss, point.rate, point.learning_rate) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0.5], RankSpread(0.5, 0.5, 0.5, 0, (0.5,))),
        ({"min": 1, "median": 2, "max": 4, "slowest": 7}, RankSpread(1, 2, 4, 7)),
        ([], None),
        ([0.0, 0.0], None),
        ([0.1, None], None),
        (["a"], None),
        ({"min": 1}, None),
        (3, None),
    ],
)
def test_times_by_rank_are_read_from_a_list_or_from_a_spread(
    value: Any, expected: RankSpread | None
) -> None:
    (point,) = history(progress(1, 5, step_seconds=value)).points
    assert point.step_seconds == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"event": "progress"}',
        b'{"event": "progress", "rank": 0, "attempt": 1}',
        b'{"event": "progress", "rank": 0, "attempt": -1, "time": 1}',
        b'{"event": 7, "rank": 0, "attempt": 1, "time": 1}',
        b'{"event": "progress", "rank": 0, "attempt": 1, "time": 1e18}',
        b'{"event": "progress", "rank": 0, "attempt": 1, "time": NaN}',
        b'{"event": ' + b"[" * 100_000,
        b'{"event": "start", "x": ' + b"9" * 10_000 + b"}",
    ],
)
def test_hostile_history_line_adds_no_event(text: bytes) -> None:
    found = history(text)
    assert found.attempts == []
    assert found.points == []


def test_names_and_numbers_of_metrics_are_bounded() -> None:
    metrics = {f"{n:03}" + "x" * 10_000: 1.0 for n in range(500)}
    (event,) = history(line("eval", 1, step=1, metrics=metrics)).evaluations
    assert len(event.metrics) == MOST_METRICS
    assert max(map(len, event.metrics)) == MOST_TEXT
