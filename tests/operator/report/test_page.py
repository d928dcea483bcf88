"""Tests of the report page: charts, tables, empty states, hostile texts and size limit."""

import json
import re
import time
from typing import Any

import pytest

from ddp_operator.report.chart import WIDE
from ddp_operator.report.text import html_text
from tests.operator.report.support import START, history, job, line, page, progress, two_attempts

HOSTILE = "\"'><script>alert(1)</script><svg onload=alert(1)>&amp;\x00\x1b"
SURROGATE = "\ud800"
"""Half of a surrogate pair, which JSON can contain and UTF-8 cannot encode."""


def titles(text: str) -> list[str]:
    return re.findall(r"<h2>([^<]*?) ?<", text)


def test_page_has_a_chart_for_each_kind_of_values() -> None:
    assert titles(page(two_attempts())) == [
        "Attempts",
        "Loss",
        "Evaluation: accuracy",
        "Throughput",
        "Update time",
        "Own time of an update, by rank",
        "Goodput: where the time went",
        "Attempts and faults",
        "Ranks of attempt 2",
    ]


def test_each_picture_has_a_role_a_description_and_a_format_for_narrow_screens() -> None:
    text = page(two_attempts())
    pictures = re.findall(r"<svg [^>]*>", text)
    assert all('role="img"' in svg and "aria-label=" in svg for svg in pictures)
    narrow = [svg for svg in pictures if 'class="narrow"' in svg]
    assert len(narrow) * 2 == len(pictures)
    assert 'aria-label="Loss. training loss: from 0.03226 to 0.09091, last 0.03226.' in text


def test_chart_line_is_interrupted_between_attempts_and_at_missing_values() -> None:
    lines = [*two_attempts(), line("start", 53, 3), progress(54, 40, 3), progress(55, 45, 3)]
    lines += [progress(56, 50, 3, loss=None), progress(57, 60, 3), progress(58, 70, 3)]
    text = page(lines)
    paths = re.findall(r'<path class="line s1" d="([^"]*)"', text)
    assert paths[0].count("M") == 4, "two attempts, and two parts of the third one"
    assert "1 report without a finite loss" in text


def test_fault_is_drawn_as_a_mark_with_its_message() -> None:
    ended = {
        "number": 1,
        "startTime": "2026-11-25T03:56:40Z",
        "endTime": "2026-11-25T03:57:12Z",
        "cause": "Application",
        "reason": "RankFailed",
        "message": "rank 1 failed: ValueError: no such flower",
    }
    text = page(two_attempts(), job(attempt=2, attempts=[ended], restarts=1))
    assert text.count('<g class="mark application">') == 2 * 6
    assert "attempt 1 ends: RankFailed\nrank 1 failed: ValueError: no such flower" in text
    assert "restarts: 1 application" in text
    assert "namespace team-a, 2 nodes with 1 rank each" in text
    assert re.search(r'data-label="Cause">Application</td>', text)


def test_hostile_texts_are_escaped_in_the_page() -> None:
    ended = {
        "number": 1,
        "endTime": "2026-11-25T03:57:12Z",
        "reason": HOSTILE,
        "cause": "Free",
        "message": HOSTILE[:200],
    }
    condition = {
        "type": "Succeeded",
        "status": "Unknown",
        "reason": "Running",
        "message": HOSTILE,
        "lastTransitionTime": "2026-11-25T03:57:12Z",
    }
    goodput = {HOSTILE + "Milliseconds": 7, "trainingMilliseconds": 7}
    manifest = job(attempt=2, attempts=[ended], conditions=[condition], goodput=goodput)
    manifest["metadata"]["namespace"] = HOSTILE
    lines = [*two_attempts(), line("eval", 53, 2, step=31, metrics={HOSTILE + SURROGATE: 1.0})]
    for text in (page(lines, manifest), page(lines, name=HOSTILE)):
        assert "<script" not in text
        assert "alert(1)&lt;/script&gt;" in text
        assert "\x00" not in text
        assert "\x1b" not in text
        text.encode()


def test_long_text_is_cut() -> None:
    assert len(html_text("a" * 10_000)) == 2000


@pytest.mark.parametrize(
    ("lines", "manifest", "sentence"),
    [
        ([], job(), "There is no progress event"),
        ([], None, "There is no progress event"),
        ([b"[rank 0] a print of the user\n"], job(attempt=1), "so does a command with"),
        ([progress(1, 1)], None, "No checkpoint was committed"),
        (
            [progress(1, 1), line("checkpoint", 2, step=1, seconds=1.0)],
            None,
            "no times by rank",
        ),
        ([progress(1, 1)[:50], progress(2, 2)], None, "Skipped: 1 damaged line."),
    ],
)
def test_report_page_names_what_is_missing(
    lines: list[bytes], manifest: dict[str, Any] | None, sentence: str
) -> None:
    assert sentence in page(lines, manifest)


def test_numbers_that_are_not_finite_are_not_drawn() -> None:
    values = [float("nan"), float("inf"), float("-inf"), 1e308, 0.5]
    lines = [progress(n, n, loss=value, lr=value) for n, value in enumerate(values)]
    text = page(lines)
    assert not re.search(r"\b(nan|inf|NaN|Infinity)\b", text.partition("</style>")[2])


def test_goodput_from_the_operator_replaces_the_computed_one() -> None:
    goodput = {"trainingMilliseconds": 9000, "dataWaitMilliseconds": 1000, "x": {}}
    goodput |= {"percent": "93.1%", "redoneSteps": 7, "hangMilliseconds": 0}
    text = page(two_attempts(), job(attempt=2, goodput=goodput))
    assert "Counted by the operator." in text
    assert "Data wait: 1 s (10.0%)" in text
    assert "<dt>Goodput</dt><dd>93.1%" in text
    assert "Computed from the events of the run." in page(two_attempts())


def test_values_of_many_ranks_are_drawn_as_a_band() -> None:
    spread = {"min": 0.1, "median": 0.2, "max": 0.4, "slowest": 77}
    lines = [progress(n, n, step_seconds=spread, own_seconds=spread) for n in range(9)]
    text = page(lines)
    assert "slowest rank" in text
    assert 'class="band s4"' in text
    assert "Ranks of attempt" not in text


@pytest.mark.parametrize("updates", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_page_of_many_updates_is_small_and_keeps_extremes(updates: int) -> None:
    lines = [line("start", 0, world_size=8)]
    ranks = [0.1] * 8
    for n in range(updates // 10):
        loss = 9.0 if n == 5_432 else 1.0 + 0.1 * (n % 7)
        lines.append(progress(n, 10 * n, loss=loss, lr=0.1, step_seconds=ranks, own_seconds=ranks))
    started = time.monotonic()
    text = page(lines)
    assert time.monotonic() - started < 60
    assert len(text) < 1_500_000
    (path,) = re.findall(r'<path class="band s1" d="([^"]*)"', text.partition("<h2>Loss")[2])[:1]
    highest = min(float(y) for y in re.findall(r" ([\d.]+)", path))
    assert highest < WIDE.top + 20, "the one high value is drawn"


def test_page_of_many_attempts_is_bounded() -> None:
    lines = [
        part for n in range(2000) for part in (line("start", 10 * n, n), progress(10 * n + 5, n, n))
    ]
    text = page(lines)
    assert len(text) < 1_500_000
    assert text.count("<tr") == 201


@pytest.mark.slow
def test_line_with_many_interruptions_is_bounded() -> None:
    lines = [progress(n / 10, n, loss=1.0 if n % 2 else None) for n in range(20_000)]
    text = page(lines)
    assert len(text) < 1_000_000
    (path,) = re.findall(r'<path class="line s1" d="([^"]*)"', text)[:1]
    assert path.count("M") < WIDE.width


def test_history_and_log_of_the_same_run_give_the_same_events() -> None:
    lines = two_attempts()
    assert history(*lines) == history(*(b"[rank 0] " + line for line in lines))
    assert json.loads(lines[0])["time"] == START
