"""The file with the newest step of a rank."""

import subprocess
import sys
from pathlib import Path

from ddp_wire.step_file import StepFile, read_step, step_path


def test_newest_step_is_read(tmp_path: Path) -> None:
    file = StepFile(tmp_path, 1, 3)
    assert read_step(tmp_path, 1, 3) is None
    for step in (300, 2):
        file.write(step)
    found = read_step(tmp_path, 1, 3)
    assert found is not None
    assert (found[0], found[1]) == (2, step_path(tmp_path, 1).stat().st_mtime)


def test_step_of_another_attempt_or_a_cut_file_is_ignored(tmp_path: Path) -> None:
    StepFile(tmp_path, 0, 3).write(7)
    assert read_step(tmp_path, 0, 4) is None
    step_path(tmp_path, 0).write_bytes(b"short")
    assert read_step(tmp_path, 0, 3) is None


def test_step_of_a_killed_process_is_exact(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from ddp_wire.step_file import StepFile;"
        "file = StepFile(pathlib.Path(sys.argv[1]), 0, 1);"
        "[file.write(step) for step in range(1001)]; os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    found = read_step(tmp_path, 0, 1)
    assert (ended.returncode, found and found[0]) == (-9, 1000)
