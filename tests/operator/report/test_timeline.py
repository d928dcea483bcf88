"""Attempts from the status and from the history, on one time axis."""

from datetime import UTC, datetime
from typing import Any

from ddp_operator.api.status import Cause
from ddp_operator.report.charts import build_marks
from ddp_operator.report.job import job_facts
from ddp_operator.report.timeline import build_timeline
from tests.operator.report.support import START, history, job, line, two_attempts


def at(seconds: float) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).isoformat().replace("+00:00", "Z")


def lost(number: int, end: float, **fields: Any) -> dict[str, Any]:
    ended = {"number": number, "endTime": at(end), "cause": "Infrastructure", "reason": "PodLost"}
    return {**ended, "message": "pod digits-1 is gone", **fields}


def test_timeline_takes_causes_from_the_status_and_older_attempts_from_the_history() -> None:
    manifest = job(attempt=3, attempts=[lost(2, 52)], attemptStartTime=at(55))
    found = history(*two_attempts(), line("start", 56, 3))
    timeline = build_timeline(job_facts(manifest), found, START + 60)
    shown = [(row.number, row.reason, row.cause, row.kind) for row in timeline.rows]
    assert shown == [
        (1, "", None, "unknown"),
        (2, "PodLost", Cause.INFRASTRUCTURE, "infrastructure"),
        (3, "Running", None, "running"),
    ]
    assert timeline.rows[0].message == "attempt 2 resumed at step 20"
    assert (timeline.start, timeline.end) == (START, START + 60)


def test_updates_of_an_attempt_are_those_of_its_events() -> None:
    """The status contains only checkpoints, and not the step from which another run resumed."""
    manifest = job(attempt=2, attempts=[lost(2, 52, startStep=0, endStep=20)])
    timeline = build_timeline(job_facts(manifest), history(*two_attempts()), START + 60)
    (row,) = (row for row in timeline.rows if row.number == 2)
    assert (row.start_step, row.end_step) == (20, 30)


def test_each_start_after_the_first_and_each_cause_is_marked() -> None:
    manifest = job(attempt=3, attempts=[lost(2, 52)], attemptStartTime=at(55))
    timeline = build_timeline(job_facts(manifest), history(*two_attempts()), START + 60)
    marks = [(mark.kind, mark.at) for mark in build_marks(timeline)]
    assert marks == [("attempt", 40), ("attempt", 55), ("infrastructure", 52)]


def test_attempt_end_in_whole_seconds_is_not_before_its_last_event() -> None:
    found = history(line("start", 0.7), line("checkpoint", 9.9, step=1))
    manifest = job(attempt=1, attempts=[lost(1, 9, startTime=at(1))], completionTime=at(9))
    (row,) = build_timeline(job_facts(manifest), found, START + 60).rows
    assert (row.start, row.end) == (START + 0.7, START + 9.9)


def test_finished_job_has_no_running_attempt() -> None:
    manifest = job(attempt=1, attempts=[lost(1, 9, startTime=at(0))], completionTime=at(9))
    timeline = build_timeline(job_facts(manifest), history(), START + 5000)
    assert [row.reason for row in timeline.rows] == ["PodLost"]
    assert timeline.seconds == 9


def test_timeline_of_a_job_that_has_not_started_is_empty() -> None:
    timeline = build_timeline(job_facts(job()), history(), START)
    assert (timeline.rows, timeline.seconds) == ((), 0)


def test_attempt_that_starts_in_the_future_has_no_negative_duration() -> None:
    manifest = job(attempt=1, attemptStartTime=at(90))
    (row,) = build_timeline(job_facts(manifest), history(), START + 60).rows
    assert row.start <= row.end
