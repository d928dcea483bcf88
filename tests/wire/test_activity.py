"""The activity record: a rank writes it, and its agent reads it from another process."""

import struct
import subprocess
import sys
import time
from pathlib import Path

from ddp_wire.activity import Activity, ActivityWriter, read_activities


def test_agent_reads_step_activity_and_time_of_the_last_progress(tmp_path: Path) -> None:
    writer = ActivityWriter(tmp_path / "3.activity")
    before = time.monotonic()
    writer.step(7)
    writer.enter(Activity.BACKWARD)
    (record,) = read_activities(tmp_path).values()
    assert (record.step, record.activity) == (7, Activity.BACKWARD)
    assert before <= record.since <= time.monotonic()


def test_new_activity_record_is_in_activity_starting(tmp_path: Path) -> None:
    ActivityWriter(tmp_path / "0.activity")
    assert read_activities(tmp_path)[0].activity is Activity.STARTING


def test_progress_within_an_activity_changes_only_the_time(tmp_path: Path) -> None:
    writer = ActivityWriter(tmp_path / "0.activity")
    writer.enter(Activity.EVALUATION)
    first = read_activities(tmp_path)[0]
    writer.touch()
    second = read_activities(tmp_path)[0]
    assert second.activity is Activity.EVALUATION
    assert second.since > first.since


def test_unreadable_activity_records_are_left_out(tmp_path: Path) -> None:
    ActivityWriter(tmp_path / "0.activity")
    (tmp_path / "1.activity").write_bytes(b"short")
    (tmp_path / "2.activity").write_bytes(struct.pack("@ddd", 1, 99, 0.0))
    (tmp_path / "3.activity").write_bytes(struct.pack("@ddd", 2.0**60, 1, 0.0))
    (tmp_path / "4.activity").write_bytes(struct.pack("@ddd", 1, 1, float("nan")))
    (tmp_path / "5.activity").write_bytes(struct.pack("@ddd", 1, 1, -5.0))
    (tmp_path / "6.activity").write_bytes(struct.pack("@ddd", 1, 1.5, 0.0))
    (tmp_path / "x.activity").write_bytes(struct.pack("@ddd", 1, 1, 0.0))
    assert list(read_activities(tmp_path)) == [0]


def test_activity_record_keeps_the_exact_step_of_a_killed_process(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from ddp_wire.activity import ActivityWriter;"
        "record = ActivityWriter(pathlib.Path(sys.argv[1]) / '0.activity');"
        "[record.step(step) for step in range(1001)]; os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert (ended.returncode, read_activities(tmp_path)[0].step) == (-9, 1000)
