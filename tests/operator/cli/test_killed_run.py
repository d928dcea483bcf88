"""The pods of a local run end when the run itself is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.cli.report_data import read_directory
from ddp_operator.client.earlier_run import KILLED
from ddp_wire.contract import Env
from tests.agent.support import wait_until
from tests.operator.cli.test_local_goodput import job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a dead parent")


def long_job(home: Path) -> dict[str, Any]:
    made = job(home, [])
    made["spec"]["config"] |= {"max_steps": 100_000}
    made["spec"]["checkpoint"]["everySteps"] = 100_000
    made["spec"]["config"]["task"] |= {"update_seconds": 0.2}
    return made


def processes_of(home: Path) -> list[int]:
    """Return the process ids of the pods of a run, without zombies."""
    marker, found = f"{Env.POD_INFO_DIR}={home}/".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(one.startswith(marker) for one in variables):
            found.append(int(folder.name))
    return found


def state_on_page(folder: Path) -> tuple[str, list[tuple[int, str, str]]]:
    """Return the state of the job and its ended attempts, as `ddpjob report` shows them."""
    job = read_directory(folder).job
    assert job is not None
    return job.state, [(one.number, one.reason, one.message) for one in job.attempts]


@pytest.mark.slow
def test_pods_of_a_killed_local_run_end(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(long_job(tmp_path)))
    start = "from ddp_operator.cli.entry import main; main()"
    command = [sys.executable, "-c", start, "run", str(file), "--dir", str(tmp_path)]
    with (tmp_path / "output.txt").open("wb") as output:
        run = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until((tmp_path / "1.txt").exists, "the ranks train", 90)
        assert len(processes_of(tmp_path)) > 4
        assert state_on_page(tmp_path / "ledger")[1] == []
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not processes_of(tmp_path), "no process of a pod is left", 90)
        end = (1, "Suspended", KILLED)
        assert state_on_page(tmp_path / "ledger") == ("Suspended", [end])
        assert list(tmp_path.rglob("step-*")), "no checkpoint was saved at the end"
    finally:
        run.kill()
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
