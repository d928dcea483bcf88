"""Another pod on the claim plants links and pipes among the copies of the ranks' logs.

Each attack is first shown to succeed with the protection off.
"""

import os
from pathlib import Path

import pytest

from ddp_agent.processes import log_mirror
from ddp_agent.processes.log_mirror import LogMirror
from ddp_wire import files
from tests.trainer.planted import content, unprotected

LINKS = {
    "logs": ".",
    "logs/attempt-12": ".",
    "logs/attempt-12/node-0": ".",
    "logs/attempt-12/node-0/stdout.log": "file",
}
"""A link in the run's directory, and its target among the victim's files."""


def mirror(run: Path, line: str = "line\n") -> LogMirror:
    """Copy one log, and return when the copying has ended or hangs."""
    source = run.parent / "scratch"
    source.mkdir(exist_ok=True)
    (source / "stdout.log").write_text(line)
    copying = LogMirror(source, run / "logs" / "attempt-12" / "node-0")
    copying.end()
    copying.wait()
    return copying


def copy_through(home: Path, link: str) -> dict[str, bytes]:
    """Plant a link, let the agent copy a log, and return the victim's files."""
    run, victim = home / "claim" / "run", home / "victim"
    victim.mkdir(parents=True)
    (victim / "file").write_text("not yours")
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(victim / LINKS[link])
    mirror(run)
    return content(victim)


@pytest.mark.parametrize("link", LINKS)
def test_log_copies_follow_no_symbolic_link(
    tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched = {"file": b"not yours"}
    assert copy_through(tmp_path / "on", link) == untouched
    unprotected(monkeypatch)
    assert copy_through(tmp_path / "off", link) != untouched, "without the protection"


def remove_through(home: Path) -> dict[str, bytes]:
    """Plant a link in place of an old attempt, and return the other job's logs."""
    run, victim = home / "claim" / "run", home / "victim"
    (victim / "node-0").mkdir(parents=True)
    (victim / "node-0" / "stdout.log").write_text("not yours")
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "attempt-1").symlink_to(victim)
    mirror(run)
    return content(victim)


def test_removal_of_old_logs_follows_no_symbolic_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remove_through(tmp_path / "on") == {"node-0/stdout.log": b"not yours"}
    unprotected(monkeypatch)
    assert remove_through(tmp_path / "off") == {}, "without the protection"


def copies_into_a_pipe(run: Path) -> bool:
    """Put a pipe in the place of a log copy, and return whether the agent blocks."""
    folder = run / "logs" / "attempt-12" / "node-0"
    folder.mkdir(parents=True)
    pipe = folder / "stdout.log"
    os.mkfifo(pipe)
    copying = mirror(run)
    waits = copying._thread.is_alive()
    if waits:
        os.close(os.open(pipe, os.O_RDWR))
    return waits


@pytest.mark.slow
def test_agent_does_not_wait_on_a_planted_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_mirror, "_CLOSE_SECONDS", 0.5)
    assert not copies_into_a_pipe(tmp_path / "on" / "run")
    (record,) = caplog.records
    assert "must be a regular file, not a link, pipe or device" in record.getMessage()
    unprotected(monkeypatch)
    assert copies_into_a_pipe(tmp_path / "off" / "run"), "without the protection"


def test_symbolic_link_above_the_run_directory_in_the_claim_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, victim = tmp_path / "claim", tmp_path / "victim"
    for folder in (claim, victim):
        folder.mkdir()
    (claim / "team").symlink_to(victim)
    monkeypatch.setattr(files, "CHECKPOINT_MOUNT", str(claim))
    mirror(claim / "team" / "run")
    assert not (victim / "run").exists()
