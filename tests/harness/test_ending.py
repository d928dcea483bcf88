"""Tests of scripts that receive SIGTERM, as `make` and CI send it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.support import wait_until
from tests.harness.ending import INTERRUPTED

CHILD_SCRIPT = """
import sys, time
from pathlib import Path
from tests.harness import ending

folder = Path(sys.argv[1])

def main():
    try:
        (folder / "started").touch()
        while True:
            time.sleep(60)
    finally:
        (folder / "cleaning").touch()
        while not (folder / "may end").exists():
            time.sleep(0.01)
        (folder / "cleaned").touch()

ending.script(main)
"""
PARENT_SCRIPT = """
import os, sys
from tests.fault_player.__main__ import run
from tests.harness import ending

ending.script(lambda: run("part", ["-c", sys.argv[2], sys.argv[1]], os.environ))
"""


def test_child_process_of_a_terminated_run_cleans_up_before_the_run_exits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT_SCRIPT, str(tmp_path), CHILD_SCRIPT]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as parent:
        _wait_for(tmp_path / "started")
        parent.terminate()
        _wait_for(tmp_path / "cleaning")
        os.killpg(parent.pid, signal.SIGTERM)
        (tmp_path / "may end").touch()
        _, stderr = parent.communicate(timeout=20)
    assert (tmp_path / "cleaned").exists()
    assert parent.returncode == INTERRUPTED
    assert stderr == b""


def _wait_for(file: Path) -> None:
    wait_until(file.exists, f"{file.name} exists", 20)
