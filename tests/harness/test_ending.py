"""Scripts that are ended by SIGTERM, as `make` and CI end them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.agent.support import wait_until
from tests.harness.ending import INTERRUPTED

PART = """
import sys, time
from pathlib import Path
from tests.harness import ending

folder = Path(sys.argv[1])

def main():
    try:
        (folder / "begun").touch()
        while True:
            time.sleep(60)
    finally:
        (folder / "cleaning").touch()
        while not (folder / "may end").exists():
            time.sleep(0.01)
        (folder / "cleaned").touch()

ending.script(main)
"""
WHOLE = """
import os, sys
from tests.fault_player.__main__ import run
from tests.harness import ending

ending.script(lambda: run("part", ["-c", sys.argv[2], sys.argv[1]], os.environ))
"""


def test_what_a_terminated_run_started_cleans_up_before_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WHOLE, str(tmp_path), PART]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as whole:
        _wait_for(tmp_path / "begun")
        whole.terminate()
        _wait_for(tmp_path / "cleaning")
        os.killpg(whole.pid, signal.SIGTERM)
        (tmp_path / "may end").touch()
        _, said = whole.communicate(timeout=20)
    assert (tmp_path / "cleaned").exists()
    assert whole.returncode == INTERRUPTED
    assert said == b""


def _wait_for(file: Path) -> None:
    wait_until(file.exists, f"{file.name} exists", 20)
