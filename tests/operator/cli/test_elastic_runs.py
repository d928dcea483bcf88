"""An elastic local run permanently loses nodes and gets them back."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_operator.api.base import API_VERSION, KIND
from tests.agent.support import wait_until
from tests.fault_player import run_checks
from tests.fault_player.record import read_attempts

START = "from ddp_operator.cli.entry import main; main()"
COMMAND = (sys.executable, "-c", START)


def elastic_job(**config: Any) -> dict[str, Any]:
    """Return an endless run of two nodes that may train with one."""
    spec = {
        "nodes": 2,
        "elastic": {"minNodes": 1, "shrinkAfterSeconds": 1, "growAfterSeconds": 1},
        "task": "ddp_trainer.tasks.miniresnet:build",
        "config": {"device": "cpu", "epochs": 100_000, "log": {"every_steps": 1, "format": "json"}}
        | config,
        "checkpoint": {"claimName": "shared", "everySteps": 10},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "elastic"}, "spec": spec}


class Run:
    """A local run in its own process."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "elastic"

    @property
    def status(self) -> dict[str, Any]:
        """Newest status of the job; empty before the first one."""
        try:
            text = (self.folder / "job.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        found: dict[str, Any] = json.loads(text)["status"]
        return found

    def node(self, verb: str, index: int) -> subprocess.CompletedProcess[str]:
        """Lose or restore a node, as a user does with `ddpjob node`."""
        command = [*COMMAND, "node", verb, "elastic", str(index), "--dir", str(self.home)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def wait_for_members(self, members: str) -> dict[str, Any]:
        """Wait until these members train, and return the status."""

        def trains() -> bool:
            status = self.status
            reasons = {c["type"]: c["reason"] for c in status.get("conditions", [])}
            return status.get("members") == members and reasons.get("Succeeded") == "Running"

        wait_until(trains, f"the members {members} train", 60)
        return self.status


@contextmanager
def running(home: Path, manifest: dict[str, Any]) -> Iterator[Run]:
    """Start a run, and stop it by Ctrl-C."""
    file, output = home / "job.yaml", home / "output.txt"
    file.write_text(yaml.safe_dump(manifest))
    with output.open("wb") as log:
        command = [*COMMAND, "run", str(file), "--dir", str(home)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Run(home)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, output.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_local_run_continues_without_lost_nodes_and_grows_when_they_return(tmp_path: Path) -> None:
    with running(tmp_path, elastic_job()) as run:
        run.wait_for_members("0-1")
        wait_until(lambda: "lastCheckpoint" in run.status, "a checkpoint", 60)
        assert run.node("lose", 1).returncode == 0
        status = run.wait_for_members("0")
        assert status["ready"] == "1/2"
        assert (status["restarts"], status["infrastructureRestarts"]) == (0, 1)
        assert run.node("restore", 1).returncode == 0
        status = run.wait_for_members("0-1")
        wait_until(lambda: "milliseconds" in run.status["lastResize"], "an update", 60)
        assert run.status["lastResize"]["repeatedUpdates"] == 0
        assert run.node("lose", 0).returncode == 0
        run.wait_for_members("1")
        assert run.node("restore", 0).returncode == 0
        status = run.wait_for_members("0-1")
        assert status["resizes"] == 4
    (directory,) = (run.folder / "volumes" / "shared").iterdir()
    attempts = read_attempts(directory)
    assert not run_checks.overlapping_attempts(attempts)
    assert not run_checks.lost_steps(attempts)


@pytest.mark.slow
def test_grown_run_starts_from_the_parts_that_its_ranks_keep_in_memory(tmp_path: Path) -> None:
    """With fsdp2 the ranks that are left write all parts before the run grows."""
    job = elastic_job(parallel={"strategy": "fsdp2"})
    job["spec"]["procsPerNode"] = 2
    with running(tmp_path, job) as run:
        run.wait_for_members("0-1")
        wait_until(lambda: "lastCheckpoint" in run.status, "a checkpoint", 60)
        assert run.node("lose", 1).returncode == 0
        run.wait_for_members("0")
        assert run.node("restore", 1).returncode == 0
        run.wait_for_members("0-1")
        wait_until(lambda: "milliseconds" in run.status["lastResize"], "an update", 60)
        assert run.status["lastResize"]["repeatedUpdates"] == 0
        log = (run.folder / "logs" / "elastic-0.log").read_text()
    resumed = re.findall(r'resumed at step [^"]*', log)
    assert len(resumed) == 2
    assert not resumed[0].endswith("in memory")
    assert resumed[1].endswith("from the state that all ranks kept in memory")


def test_ddpjob_node_lose_refuses_a_run_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "elastic").mkdir()
    ended = Run(tmp_path).node("lose", 1)
    assert ended.returncode == 2
    assert ended.stderr.startswith("ddpjob: JOB must run on this machine now")
