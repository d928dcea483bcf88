"""Copies of the logs on the shared volume, which never disturb the run."""

from pathlib import Path

import pytest

from ddp_agent import log_mirror
from ddp_agent.log_mirror import LogMirror
from tests.agent.support import wait_until


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_mirror, "EVERY_SECONDS", 0.01)


def test_log_lines_are_copied_during_the_run_and_at_its_end(tmp_path: Path) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    log = source / "run" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    copy = target / log.relative_to(source)
    mirror = LogMirror(source, target)
    with log.open("w") as file:
        file.write("one\n")
        file.flush()
        wait_until(
            lambda: copy.exists() and copy.read_text() == "one\n", "the first line is copied"
        )
        file.write("two\n")
    mirror.end()
    mirror.wait()
    assert copy.read_text() == "one\ntwo\n"


def test_logs_of_an_earlier_container_are_overwritten(tmp_path: Path) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    for folder, text in ((source, "new\n"), (target, "much older\n")):
        folder.mkdir()
        (folder / "a.log").write_text(text)
    mirror = LogMirror(source, target)
    mirror.end()
    mirror.wait()
    assert (target / "a.log").read_text() == "new\n"


def test_failed_copies_are_retried_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    source.mkdir()
    (source / "a.log").write_text("one\n")
    target.write_text("no directory")
    mirror = LogMirror(source, target)
    wait_until(lambda: bool(caplog.records), "the failure is logged")
    target.unlink()
    wait_until((target / "a.log").exists, "the log is copied")
    mirror.end()
    mirror.wait()
    assert (target / "a.log").read_text() == "one\n"
    assert len(caplog.records) == 1
    assert "logs could not be copied to" in caplog.text
