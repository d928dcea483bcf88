"""Logs that are kept on the shared volume too, and never at the run's expense."""

from pathlib import Path

import pytest

from ddp_agent import log_mirror
from ddp_agent.log_mirror import LogMirror
from tests.agent.support import wait_until


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_mirror, "EVERY_SECONDS", 0.01)


def test_what_is_written_is_kept_while_it_is_written_and_at_the_end(tmp_path: Path) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    log = source / "run" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    kept = target / log.relative_to(source)
    mirror = LogMirror(source, target)
    with log.open("w") as file:
        file.write("one\n")
        file.flush()
        wait_until(lambda: kept.exists() and kept.read_text() == "one\n", "the first line is kept")
        file.write("two\n")
    mirror.end()
    mirror.wait()
    assert kept.read_text() == "one\ntwo\n"


def test_what_an_earlier_container_left_there_is_written_over(tmp_path: Path) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    for folder, text in ((source, "new\n"), (target, "much older\n")):
        folder.mkdir()
        (folder / "a.log").write_text(text)
    mirror = LogMirror(source, target)
    mirror.end()
    mirror.wait()
    assert (target / "a.log").read_text() == "new\n"


def test_a_volume_that_refuses_is_tried_again_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    source.mkdir()
    (source / "a.log").write_text("one\n")
    target.write_text("no directory")
    mirror = LogMirror(source, target)
    wait_until(lambda: bool(caplog.records), "the refusal is told")
    target.unlink()
    wait_until((target / "a.log").exists, "the log is kept")
    mirror.end()
    mirror.wait()
    assert (target / "a.log").read_text() == "one\n"
    assert len(caplog.records) == 1
    assert "logs are not kept in" in caplog.text
