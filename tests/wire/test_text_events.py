"""Events as lines for people, and the events in such lines."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_wire.text_events import event_in, text_of

START = 1_764_424_800.0
"""Unix time of 2025-11-29T14:00:00Z."""


def event(kind: str, *, rank: int = 0, attempt: int = 2, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "time": START, "rank": rank, "attempt": attempt, **fields}


PROGRESS = event(
    "progress",
    step=120,
    total_steps=480,
    loss=0.31,
    lr=0.05,
    samples_per_second=812.4,
    eta_seconds=27,
)
EVENTS = [
    event(
        "start",
        world_size=4,
        device="cpu",
        strategy="ddp",
        precision="fp32",
        task="tasks:build",
        total_steps=480,
        global_batch=64,
    ),
    event("resume", step=40, message="resumed at step 40 of 480"),
    PROGRESS,
    event("eval", step=120, metrics={"loss": 0.3, "top 5": 0.9}, train_loss=0.31, seconds=1.25),
    event("checkpoint", step=120, path="/ck/step 120", seconds=0.4),
    event("warning", message="two\nlines"),
    event("note", message="workers: 2"),
    event("stop", steps=200, total_steps=480, samples=12800, seconds=72.0, signal="SIGTERM"),
    event("summary", steps=480, total_steps=480, samples=30720, seconds=72.0, metrics={"a": 1.0}),
]
LINES = [
    "start: 4 ranks on cpu, ddp, fp32, tasks:build, 480 updates of 64 samples",
    "resumed at step 40 of 480",
    "step 120 of 480: loss 0.31, lr 0.05, 812.4 samples/s, 27 s left",
    "evaluation at step 120: loss 0.3, top 5 0.9, training loss 0.31 (1.25 s)",
    "checkpoint of step 120 in 0.4 s: /ck/step 120",
    "warning: two lines",
    "note: workers: 2",
    "stop: 200 of 480 updates, 12800 samples in 1 min 12 s, signal SIGTERM",
    "summary: 480 of 480 updates, 30720 samples in 1 min 12 s, a 1",
]


@pytest.mark.parametrize(("found", "line"), list(zip(EVENTS, LINES, strict=True)))
def test_line_of_an_event(found: dict[str, Any], line: str) -> None:
    assert text_of(found) == f"2025-11-29T14:00:00Z [attempt 2] {line}"


def test_line_says_how_far_the_mirror_is_behind() -> None:
    line = text_of(PROGRESS | {"mirror_step": 100, "mirror_behind_seconds": 72.4})
    assert line.endswith("812.4 samples/s, 27 s left, mirror 1 min 12 s behind")
    assert event_in(line) == event_in(text_of(PROGRESS))
    line = text_of(PROGRESS | {"mirror_step": 120, "mirror_behind_seconds": 0.0})
    assert "mirror" not in line


def test_line_of_another_rank_names_the_rank_and_is_no_event_of_rank_0() -> None:
    line = text_of(PROGRESS | {"rank": 3})
    assert line.startswith("2025-11-29T14:00:00Z [attempt 2] rank 3: step 120 of 480: loss")
    assert event_in(line) is None


def test_event_with_missing_fields_is_printed_with_those_that_it_has() -> None:
    line = text_of(event("progress", step=2, loss=None))
    assert line.endswith("[attempt 2] progress: step 2, loss not finite")


def test_loss_that_is_not_finite_is_named() -> None:
    line = text_of(PROGRESS | {"loss": None})
    assert "loss not finite, lr 0.05" in line
    assert "loss" not in (event_in(line) or {})


@pytest.mark.parametrize("found", EVENTS, ids=lambda one: str(one["event"]))
def test_event_is_found_in_its_line(found: dict[str, Any]) -> None:
    read = event_in(text_of(found))
    assert read is not None
    assert {name: found[name] for name in read} == read
    assert {"event", "time", "rank", "attempt"} <= set(read)


def test_all_values_of_the_charts_are_found() -> None:
    read = event_in(text_of(PROGRESS))
    assert read is not None
    assert set(PROGRESS) - set(read) == {"eta_seconds"}


@given(
    loss=st.floats(1e-6, 1e6),
    lr=st.floats(1e-9, 10),
    rate=st.floats(0.001, 1e9),
    left=st.integers(0, 10**7),
    step=st.integers(1, 10**9),
)
def test_numbers_keep_four_digits(
    loss: float, lr: float, rate: float, left: int, step: int
) -> None:
    fields = {"loss": loss, "lr": lr, "samples_per_second": rate}
    line = text_of(PROGRESS | fields | {"step": step, "eta_seconds": left})
    read = event_in(line)
    assert read is not None
    assert read["step"] == step
    for name, value in fields.items():
        assert read[name] == pytest.approx(value, rel=1e-3)


@given(st.text())
def test_any_other_text_is_read_without_an_error(text: str) -> None:
    for line in (text, f"2025-11-29T14:00:00Z [attempt 2] {text}"):
        json.dumps(event_in(line))


@pytest.mark.parametrize(
    "line",
    [
        "2025-13-29T14:00:00Z [attempt 2] step 1 of 2: loss 1, lr 1",
        "2025-11-29T14:00:00Z [attempt 2] step 1 of 2",
        "step 1 of 2: loss 1, lr 1",
        "2025-11-29T14:00:00Z [attempt 2] " + "step 1 of 2: loss 1" * 1000,
    ],
)
def test_text_that_only_resembles_an_event_is_none(line: str) -> None:
    assert event_in(line) is None
