"""`ddpjob status` and `ddpjob list`: what they show of a job."""

from datetime import timedelta
from typing import Any

import pytest

from ddp_operator.api.job import DDPJob, parse_job
from ddp_operator.report.rows import HEAD, WIDE_HEAD, age_text, build_rows
from ddp_operator.report.story import tell
from tests.operator.report.test_why import condition
from tests.operator.support import NOW, job_manifest

BEGIN = NOW.isoformat()


def later(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def job(state: str = "Running", name: str = "digits", **status: Any) -> DDPJob:
    conditions = [condition("Succeeded", "Unknown", state, "4 ranks are training")]
    full = {"conditions": conditions, "startTime": BEGIN, "attempt": 3, **status}
    return parse_job({**job_manifest(name, nodes=2, procsPerNode=2), "status": full})


PROGRESS = {
    "summary": "60/120 (50%)",
    "step": 60,
    "totalSteps": 120,
    "epoch": 2,
    "loss": "0.213",
    "samplesPerSecond": 10402,
    "etaSeconds": 3720,
    "metrics": {"accuracy": "0.97"},
}


def test_story_has_size_state_progress_checkpoint_and_next_action() -> None:
    saved = {"step": 50, "path": "/checkpoints/step-50", "time": later(700)}
    found = tell(
        job(progress=PROGRESS, lastCheckpoint=saved, nextAction="none: all ranks are training"),
        NOW + timedelta(seconds=720),
        place="namespace team-a",
    )
    lines = {fact.label: fact.text for fact in found if fact.label}
    assert lines["Job"] == "digits (namespace team-a), 2 nodes x 2 ranks"
    assert lines["Status"] == "Running, started 12 min ago"
    assert lines["Progress"] == "update 60/120 (50%), epoch 2, loss 0.213, 10,402 samples/s"
    assert lines["Evaluation"] == "accuracy 0.97"
    assert lines["Checkpoint"] == "update 50, 20 s ago"
    assert lines["Next"] == "none: all ranks are training"
    assert "about 1 h 2 min left" in [fact.text for fact in found]


def test_story_has_each_attempt_with_cause_duration_and_saved_updates() -> None:
    attempts = [
        {
            "number": 2,
            "startTime": BEGIN,
            "endTime": later(480),
            "cause": "Application",
            "reason": "RankFailed",
            "message": "rank 3 failed",
            "startStep": 600,
            "endStep": 1200,
        }
    ]
    found = tell(
        job(attempts=attempts, attemptStartTime=later(480), resumedFromStep=1200, restarts=1),
        NOW + timedelta(seconds=500),
        place="here",
    )
    texts = [fact.text for fact in found]
    assert "3: current, for 20 s, resumed from update 1,200" in texts
    assert (
        "2: RankFailed (Application) after 8 min; saved updates 600 to 1,200: rank 3 failed"
        in texts
    )
    assert "and 1 earlier attempt" in texts
    assert "1 of 3 for the application, 0 of 50 for the infrastructure, 0 free" in texts


def test_story_says_where_the_time_went() -> None:
    goodput = {"percent": "93.1%", "trainingMilliseconds": 660_000, "startingMilliseconds": 22_000}
    found = tell(job(goodput=goodput), NOW, place="here")
    [line] = [fact.text for fact in found if fact.label == "Goodput"]
    assert line == "93.1%: training 11 min, starting 22 s"


def test_ended_job_has_its_duration_and_no_time_left() -> None:
    ended = job("Completed", completionTime=later(60), progress=PROGRESS)
    found = tell(ended, NOW + timedelta(seconds=120), place="here")
    texts = [fact.text for fact in found]
    assert "Completed, after 1 min, 1 min ago" in texts
    assert not [text for text in texts if "left" in text]


def test_rows_are_sorted_and_have_a_cell_for_each_column() -> None:
    new = parse_job(job_manifest("a-new-job"))
    rows = build_rows([job(progress=PROGRESS, ready="2/2"), new], NOW + timedelta(seconds=90))
    assert [row.cells[0] for row in rows] == ["a-new-job", "digits"]
    assert all(len(row.cells) == len(WIDE_HEAD) for row in rows)
    assert rows[0].cells[: len(HEAD)] == ("a-new-job", "Pending", *"-----", "1m30s")
    cells = dict(zip(WIDE_HEAD, rows[1].cells, strict=True))
    assert (cells["READY"], cells["LOSS"], cells["LEFT"]) == ("2/2", "0.213", "1 h 2 min")
    assert cells["SAMPLES/S"] == "10,402"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (312, "5m12s"), (660, "11m"), (3 * 3600, "3h"), (187_200, "2d4h")],
)
def test_ages_have_the_style_of_kubectl(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
