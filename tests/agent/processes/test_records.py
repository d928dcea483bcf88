"""Tests of the folder of a node's records: who owns it, and who may delete it."""

import json
import os
from pathlib import Path

import pytest

from ddp_agent.processes.records import RecordsFolder
from ddp_wire.records import PART_FILE, leaving, must_leave


def test_folder_belongs_to_the_agent_alone_and_ends_with_it(tmp_path: Path) -> None:
    folder = RecordsFolder("uid/1", 3, tmp_path)
    assert folder.path == tmp_path / f"ddp-records-{os.getuid()}-uid-1-3"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.delete()
    assert list(tmp_path.iterdir()) == []


def test_restarted_agent_finds_the_records_of_its_node(tmp_path: Path) -> None:
    folder = RecordsFolder("uid", 0, tmp_path)
    assert folder.path is not None
    (folder.path / "record").touch()
    assert folder._lock is not None
    os.close(folder._lock)  # As the end of the process does.
    again = RecordsFolder("uid", 0, tmp_path)
    assert again.path == folder.path
    assert (folder.path / "record").exists()


def test_agent_deletes_folders_of_agents_that_have_ended_and_no_others(tmp_path: Path) -> None:
    ended, running = RecordsFolder("ended", 0, tmp_path), RecordsFolder("running", 0, tmp_path)
    assert ended.path is not None
    assert running.path is not None
    assert ended._lock is not None
    os.close(ended._lock)
    (tmp_path / "other").mkdir()
    RecordsFolder("new", 0, tmp_path)
    assert not ended.path.exists()
    assert running.path.exists()
    assert (tmp_path / "other").exists()


def test_folder_in_use_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    RecordsFolder("uid", 0, tmp_path)
    second = RecordsFolder("uid", 0, tmp_path)
    assert second.path is None
    assert "another agent uses" in caplog.text


@pytest.mark.parametrize("planted", ["link", "open folder"])
def test_planted_folder_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, planted: str
) -> None:
    path = tmp_path / f"ddp-records-{os.getuid()}-uid-0"
    if planted == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "target")
    else:
        path.mkdir()
        path.chmod(0o777)
    assert RecordsFolder("uid", 0, tmp_path).path is None
    assert "only this user can use" in caplog.text


def test_agent_without_shared_memory_keeps_no_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RecordsFolder("uid", 0, tmp_path / "missing")
    assert folder.path is None
    assert "not kept in memory" in caplog.text
    folder.ask_to_leave(1)
    assert not folder.is_written()
    folder.delete()


def test_request_to_leave_is_for_one_attempt(tmp_path: Path) -> None:
    folder = RecordsFolder("uid", 0, tmp_path)
    assert folder.path is not None
    assert not must_leave(folder.path, 2)
    folder.ask_to_leave(2)
    assert must_leave(folder.path, 2)
    assert not must_leave(folder.path, 3)
    assert not folder.is_written()
    (folder.path / "step-00000005.attempt-2.tmp").mkdir()
    assert folder.is_written()


def test_mark_of_a_killed_rank_does_not_delay_a_later_attempt(tmp_path: Path) -> None:
    folder = RecordsFolder("uid", 0, tmp_path)
    assert folder.path is not None
    with leaving(folder.path):
        assert folder.is_written()
        (killed,) = folder.path.glob("leaving-*")
    assert not folder.is_written()
    killed.touch()
    folder.ask_to_leave(3)
    assert not folder.is_written()


def test_node_reports_whole_records_and_the_parts_of_all_its_ranks(tmp_path: Path) -> None:
    folder = RecordsFolder("uid", 0, tmp_path)
    assert folder.path is not None
    for step, division in ((5, "own"), (6, "all"), (7, "all")):
        part = folder.path / f"step-{step:08d}.attempt-2"
        part.mkdir()
        (part / PART_FILE).write_text(json.dumps({"division": division, "world_size": 3}))
    for name in ("rank-0", "rank-1.tmp", "rank-1.tmp.owner"):
        (folder.path / f"step-00000006.attempt-2.{name}").mkdir()
    assert folder.kept_steps(2, 2) == (5, None)
    assert folder.kept_steps(2, 1) == (5, 6)
    (folder.path / "step-00000006.attempt-2.rank-1").mkdir()
    assert folder.kept_steps(2, 2) == (5, 6)
    (folder.path / "step-00000006.attempt-2.rank-2").mkdir()
    assert folder.kept_steps(2, 2) == (6, None)
    assert folder.kept_steps(3, 2) == (None, None)
