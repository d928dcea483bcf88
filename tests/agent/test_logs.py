"""Log lines of the agent: text for people, or one JSON object per line."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_agent import logs
from ddp_agent.main import main
from ddp_wire.contract import Env
from tests.agent.harness import stub_torchrun
from tests.agent.support import adopting_orphans, environment

CONTEXT = {"job": "team-a/digits", "namespace": "team-a", "node": 3}
IDENTITY: dict[str, str] = {
    Env.JOB_NAME: "digits",
    Env.JOB_NAMESPACE: "team-a",
    Env.NODE_INDEX: "3",
}
FAILS = "print('[rank 6] loss 1', flush=True); fail(rank=6, exitCode=7, message='E: no')"


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Process whose logging is not configured yet, as a new one."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    logs.begin_attempt(0)


def set_environment(monkeypatch: pytest.MonkeyPatch, home: Path, **changes: str) -> None:
    given = {**IDENTITY, Env.NODES: "4", Env.PROCS_PER_NODE: "2", Env.AGENT_PORT: "0", **changes}
    for name, value in environment(home, **given).items():
        monkeypatch.setenv(name, value)


def objects(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")
@pytest.mark.parametrize("style", ["json", "text", None])
def test_agent_logs_an_attempt_and_leaves_the_output_of_the_ranks_as_it_is(
    style: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stub_torchrun(monkeypatch, FAILS)
    monkeypatch.setattr("ddp_agent.agent.UNREAD_SECONDS", 0.0)
    changes = {Env.NODES: "1", Env.NODE_INDEX: "0", Env.AGENT_BIND: "127.0.0.1"}
    changes |= {} if style is None else {Env.LOG_FORMAT: style}
    set_environment(monkeypatch, tmp_path, **changes)
    (tmp_path / "attempt").write_text("2")
    with adopting_orphans(), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 7
    out, err = capfd.readouterr()
    assert out == "[rank 6] loss 1\n"
    if style == "json":
        started, failed, last = objects(err)
        assert started.pop("message").startswith("attempt 2: torchrun --nnodes=1 ")
        assert started.pop("time").endswith("+00:00")
        context = {"job": "team-a/digits", "namespace": "team-a", "node": 0, "attempt": 2}
        assert started == {"level": "INFO", "logger": "ddp_agent", **context}
        assert (failed["level"], failed["rank"], failed["attempt"]) == ("ERROR", 6, 2)
        assert failed["message"] == "attempt 2: rank 6 failed: E: no"
        assert "rank" not in last
    else:
        lines = err.splitlines()
        assert lines[0].startswith("ddp-agent: attempt 2: torchrun --nnodes=1 ")
        assert lines[1] == "ddp-agent: attempt 2: rank 6 failed: E: no"
        assert lines[2:] == ["ddp-agent: no attempt order arrived within 0 s"]


def test_json_line_without_an_identity_has_no_empty_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in Env:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(Env.LOG_FORMAT, "json")
    logs.begin_attempt(0)  # Another test may have run an attempt in this process.
    with pytest.raises(SystemExit) as ended:
        main()
    entry = json.loads(str(ended.value.code))
    assert set(entry) == {"time", "level", "logger", "message"}
    assert entry["level"] == "CRITICAL"
    assert entry["message"].startswith("DDP_JOB_UID must be set")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("style", ["json", "text"])
def test_launcher_logs_in_the_same_format_as_the_agent(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, tmp_path, **{Env.LOG_FORMAT: style, Env.ATTEMPT: "5"})
    line = logs.format_line("torchrun failed: no\nroute", logging.ERROR)
    if style == "json":
        (entry,) = objects(line)
        del entry["time"]
        message = "torchrun failed: no\nroute"
        level = {"level": "ERROR", "logger": "ddp_agent"}
        assert entry == {**level, "message": message, **CONTEXT, "attempt": 5}
    else:
        assert line == "ddp-agent: torchrun failed: no\nroute"


def test_uncaught_error_of_any_thread_is_one_json_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_environment(monkeypatch, tmp_path, **{Env.LOG_FORMAT: "json"})
    logs.configure()

    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    try:
        raise ValueError("in the loop")  # noqa: TRY301
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    first, second = objects(capsys.readouterr().err)
    assert [first["level"], second["level"]] == ["CRITICAL", "CRITICAL"]
    assert "ValueError: in a thread" in first["exception"]
    assert "ValueError: in the loop" in second["exception"]
    assert first["job"] == second["job"] == "team-a/digits"
