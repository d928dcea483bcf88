"""The folder of a local run has one owner at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddp_operator.cli.main import main
from ddp_operator.client.run_folder import JOB_FILE, locked
from ddp_operator.cluster.base import ClusterError
from tests.operator.cli.test_main import JOB, write

HOLD = """
import sys
from pathlib import Path
from ddp_operator.client.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_same_job_started_twice_in_one_folder_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "digits"
    command = [sys.executable, "-c", HOLD, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"held\n"
            (home / JOB_FILE).write_text("of the first run")
            file = write(tmp_path, JOB.replace("[python, train.py]", "[python]"))
            run = ["run", file, "--dir", str(tmp_path)]
            ended = CliRunner().invoke(main, run)
            assert ended.exit_code == 2
            expected = f"ddpjob: digits already runs here (process {owner.pid}); wait for its end"
            assert ended.stderr.startswith(expected)
            assert len(ended.stderr.splitlines()) == 1
            assert (home / JOB_FILE).read_text() == "of the first run"
        finally:
            owner.kill()
    with locked(home):  # The kernel released the lock of the killed process.
        assert (home / "job.json.lock").read_text() == str(os.getpid())


def test_lock_of_a_run_folder_covers_only_this_folder_and_ends_with_the_run(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "digits"), locked(tmp_path / "b" / "digits"):
        sentence = rf"already runs here \(process {os.getpid()}\)"
        with pytest.raises(ClusterError, match=sentence), locked(tmp_path / "a" / "digits"):
            raise AssertionError("both hold the lock")
    with locked(tmp_path / "a" / "digits"):
        pass
