"""Events, jobs and pages for the tests of the report."""

import json
from html.parser import HTMLParser
from typing import Any

from ddp_operator.report.history import History, read_history
from ddp_operator.report.job import job_facts
from ddp_operator.report.page import Report, build_page

START = 1_795_579_000.0
"""Unix seconds of the first event: 2026-11-25 03:56:40 UTC."""
_VOID = {"meta", "br"}


def line(event: str, at: float, attempt: int = 1, /, **fields: Any) -> bytes:
    head = {"event": event, "time": START + at, "rank": 0, "attempt": attempt}
    return json.dumps({**head, **fields}).encode() + b"\n"


def progress(at: float, step: int, attempt: int = 1, /, **fields: Any) -> bytes:
    values = {"step": step, "total_steps": 100, "loss": 1 / (step + 1), "samples_per_second": 500.0}
    return line("progress", at, attempt, **{**values, **fields})


def two_attempts() -> list[bytes]:
    """Return a run that loses updates 21 to 30, because its second attempt resumes at 20."""
    return [
        line("start", 0, world_size=2),
        progress(10, 10, step_seconds=[1.0, 1.0], own_seconds=[0.2, 0.6]),
        progress(20, 20, step_seconds=[1.0, 1.0], own_seconds=[0.2, 0.6]),
        line("checkpoint", 21, step=20, path="/c", seconds=1.0),
        progress(31, 30),
        line("start", 40, 2, world_size=2),
        line("resume", 40, 2, step=20),
        progress(50, 30, 2, step_seconds=[1.0, 1.2], own_seconds=[0.2, 0.6]),
        line("eval", 52, 2, step=30, metrics={"loss": 0.5, "accuracy": 0.75}, seconds=2.0),
        line("summary", 52, 2, steps=30),
    ]


def job(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "digits", "namespace": "team-a"},
        "spec": {"nodes": 2, "command": ["python", "train.py"]},
        "status": status,
    }


def history(*lines: bytes) -> History:
    return read_history(lines)


def page(lines: list[bytes], manifest: dict[str, Any] | None = None, name: str = "digits") -> str:
    """Return a report page after a check of its HTML."""
    facts = job_facts(manifest) if manifest is not None else None
    now = START + 60
    text = build_page(Report(name, "the test", facts, read_history(lines), [], now))
    Checker().check(text)
    return text


class Checker(HTMLParser):
    """Parser that checks that each element is closed, and that the page loads and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[str] = []

    def check(self, text: str) -> None:
        self.feed(text)
        self.close()
        assert self._open == []
        assert self.tags.count("html") == self.tags.count("body") == 1
        assert not {"script", "img", "link", "iframe", "a", "object"} & set(self.tags)
        assert "http://" not in text
        assert "https://" not in text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        assert not [name for name in names if name.startswith("on") or name in {"href", "src"}]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self._open
        assert self._open.pop() == tag, f"{tag} is not open"
