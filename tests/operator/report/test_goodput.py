"""Goodput from events: the buckets fill the time axis."""

import pytest

from ddp_operator.report.goodput import (
    CHECKPOINTS,
    EVALUATION,
    OTHER,
    REPEATED,
    TRAINING,
    measured_goodput,
)
from ddp_operator.report.timeline import build_timeline
from tests.operator.report.support import START, history, line, two_attempts


def test_updates_between_resumed_and_reached_step_count_as_repeated() -> None:
    found = history(*two_attempts())
    timeline = build_timeline(None, found, START + 60)
    assert measured_goodput(found, timeline) == pytest.approx(
        {TRAINING: 30.0, REPEATED: 10.0, EVALUATION: 2.0, CHECKPOINTS: 1.0, OTHER: 9.0}
    )


def test_report_of_a_run_without_progress_has_no_goodput() -> None:
    found = history(line("start", 0), line("checkpoint", 9, step=1, seconds=1.0))
    assert measured_goodput(found, build_timeline(None, found, START + 60)) == {}
