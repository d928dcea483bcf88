"""Tests of the copies of the logs on the shared volume, which must never disturb the run."""

import sys
from functools import partial
from pathlib import Path

import pytest

from ddp_agent.processes import log_mirror
from ddp_agent.processes.log_mirror import LogMirror
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


MEGABYTE = 1 << 20


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_mirror, "LARGEST_COPY", 4 * MEGABYTE)
    monkeypatch.setattr(log_mirror, "LARGEST_LOG", 8 * MEGABYTE)
    monkeypatch.setattr(log_mirror, "COPIED_TAIL", MEGABYTE)


def print_lines(log: Path, megabytes: int, mirror: LogMirror) -> bytes:
    """Write numbered lines as a rank does, while the mirror works. Return all of them."""
    written = b""
    with log.open("wb") as file:
        for number in range(megabytes):
            lines = b"".join(b"line %09d.%03d\n" % (number, one) for one in range(MEGABYTE // 18))
            written += lines
            file.write(lines)
            file.flush()
            end = file.tell()
            wait_until(partial(is_copied, mirror, log, end), "the lines are copied")
    return written


def is_copied(mirror: LogMirror, log: Path, end: int) -> bool:
    """Return whether a log is copied up to a position."""
    return log in mirror._copied and mirror._copied[log].end >= end


@pytest.mark.slow
@pytest.mark.usefixtures("_small_limits")
@pytest.mark.skipif(sys.platform != "linux", reason="frees parts of a file")
def test_log_and_copy_of_a_run_that_prints_without_end_are_bounded(tmp_path: Path) -> None:
    source, target = tmp_path / "scratch", tmp_path / "volume"
    source.mkdir()
    log = source / "stdout.log"
    mirror = LogMirror(source, target)
    written = print_lines(log, 20, mirror)
    mirror.end()
    mirror.wait()
    new, old = (target / name for name in ("stdout.log", "stdout.log.old"))
    assert old.stat().st_size + new.stat().st_size <= 10 * MEGABYTE
    assert written.endswith(old.read_bytes() + new.read_bytes())
    assert log.stat().st_blocks * 512 <= 4 * MEGABYTE
    assert log.stat().st_size == len(written)
    assert log.read_bytes()[-MEGABYTE:] == written[-MEGABYTE:]


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.skipif(sys.platform != "linux", reason="frees parts of a file")
def test_log_is_bounded_while_the_volume_accepts_no_data(tmp_path: Path) -> None:
    """Lines that were freed before the volume came back are lost, the later ones are copied."""
    source, target = tmp_path / "scratch", tmp_path / "volume"
    source.mkdir()
    target.write_text("no directory")
    log = source / "stdout.log"
    written = b"".join(b"%015d\n" % number for number in range(MEGABYTE))
    log.write_bytes(written)
    mirror = LogMirror(source, target)
    wait_until(lambda: log.stat().st_blocks * 512 <= 9 * MEGABYTE, "the start is freed")
    target.unlink()
    wait_until(lambda: is_copied(mirror, log, len(written)), "the rest is copied")
    mirror.end()
    mirror.wait()
    copies = [target / name for name in ("stdout.log.old", "stdout.log")]
    assert written.endswith(b"".join(one.read_bytes() for one in copies if one.exists()))


def test_logs_of_old_attempts_are_removed_from_the_volume(tmp_path: Path) -> None:
    source, logs = tmp_path / "scratch", tmp_path / "logs"
    source.mkdir()
    for attempt in (1, 2, 3, 12):
        for node in ("node-0", "node-1"):
            (logs / f"attempt-{attempt}" / node).mkdir(parents=True)
    (logs / "attempt-1" / "node-1").rmdir()
    (logs / "attempt-other").mkdir()
    mirror = LogMirror(source, logs / "attempt-12" / "node-0")
    mirror.end()
    mirror.wait()
    kept = sorted(str(one.relative_to(logs)) for one in logs.rglob("*"))
    assert kept == [
        "attempt-12",
        "attempt-12/node-0",
        "attempt-12/node-1",
        "attempt-2",
        "attempt-2/node-1",
        "attempt-3",
        "attempt-3/node-0",
        "attempt-3/node-1",
        "attempt-other",
    ]
