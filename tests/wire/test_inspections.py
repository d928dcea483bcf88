"""Questions of users to ranks: annotation, and answers in the log."""

import json

import pytest

from ddp_wire.inspections import Answer, Question, answer_in, inspection_from_text


@pytest.mark.parametrize("one", [Question("5f3a91c2"), Question("0", 1), Question("ab", 100)])
def test_question_is_read_from_its_annotation(one: Question) -> None:
    assert inspection_from_text(one.to_text()) == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stacks",
        "stacks:",
        "stacks:A",
        "stacks:a\n",
        "stacks:" + "a" * 17,
        "profile:a",
        "profile:a:0",
        "profile:a:101",
        "profile:a:1:2",
        "trace:a",
    ],
)
def test_other_text_is_no_question(text: str) -> None:
    assert inspection_from_text(text) is None


ANSWERS = [
    Answer("ab", 3, '  File "/code/train.py", line 4 in step'),
    Answer("ab", 3, ""),
    Answer("ab", 3),
    Answer("ab", None, "rank 0 writes the trace"),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answer_is_read_from_a_log_of_either_format(answer: Answer) -> None:
    message = answer.to_text()
    assert answer_in(f"ddp-agent: {message}") == answer
    line = {"time": "2026-03-01T12:00:00.000+00:00", "level": "INFO", "message": message}
    assert answer_in(json.dumps(line)) == answer


@pytest.mark.parametrize(
    "line",
    [
        "[rank 0] ddp-agent: inspection ab rank 3: x",
        "ddp-agent: inspection AB rank 3: x",
        'ddp-agent: attempt 1: torchrun "inspection ab: x"',
        '{"time": "x", "message": "inspection ab',
        '{"time": "x", "message": "inspection ab x"}',
    ],
)
def test_other_lines_are_no_answer(line: str) -> None:
    assert answer_in(line) is None
