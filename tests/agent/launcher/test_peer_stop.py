"""When one rank of a node fails, the launcher ends the node's other ranks within about a second."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_agent.processes.launch import Launch
from ddp_agent.processes.supervise import ColdTree, ProcessTree, WarmTree
from ddp_agent.processes.warm import Standby
from ddp_wire.contract import Env
from ddp_wire.records import PENDING
from tests.agent.launcher.test_warm_cold import prepared, run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does"),
    pytest.mark.usefixtures("adopting_standby"),
    pytest.mark.slow,
]

Start = Callable[[str], tuple[ProcessTree, Launch]]

TORCHS_WAIT_SECONDS = 30
HEAD = """
import os, pathlib, signal, sys, time

home = pathlib.Path(__file__).parent
rank = int(os.environ["RANK"])

def wait_for(name):
    while not (home / name).exists():
        time.sleep(0.01)

"""
WAITS_FOR_EVER = """
if rank == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It waits in a collective, without Python code.
    (home / "ready").touch()
    wait_for("nothing")
wait_for("ready")
sys.exit(3)
"""
KEEPS_ITS_STATE = """
records = pathlib.Path(os.environ["DDP_RECORDS_DIR"])

def keep(*_):
    asked = (records / "leave").read_text()
    (records / "part.tmp").touch()
    time.sleep(2)  # A second is not enough.
    (home / "kept").write_text(asked)
    (records / "part.tmp").unlink()
    os._exit(85)

if rank == 1:
    signal.signal(signal.SIGTERM, keep)
    (home / "ready").touch()
    wait_for("nothing")
wait_for("ready")
sys.exit(3)
"""
CAUSE_ENDS_LATE = """
def end(*_):
    raise ValueError("the cause")

if rank == 1:
    signal.signal(signal.SIGTERM, end)
    (home / "ready").touch()
    wait_for("nothing")
wait_for("ready")
raise RuntimeError("Connection closed by peer")
"""
ENDED_BY_SIGTERM = """
if rank == 1:
    (home / "ready").touch()
    wait_for("nothing")
wait_for("ready")
os._exit(3)
"""


@pytest.fixture(params=["warm", "cold"])
def start(request: pytest.FixtureRequest, standby: Standby, tmp_path: Path) -> Start:
    """Return a function that starts an attempt of two ranks, which run a program."""
    (tmp_path / "records").mkdir()

    def start(program: str) -> tuple[ProcessTree, Launch]:
        (tmp_path / "program.py").write_text(HEAD + program, encoding="utf-8")
        launch = prepared(tmp_path, 3, str(tmp_path / "program.py"))
        folder = {str(Env.RECORDS_DIR): str(tmp_path / "records")}
        launch = replace(launch, environment=launch.environment | folder)
        if request.param == "cold":
            return ColdTree(launch.command, launch.environment), launch
        return WarmTree(standby, launch.arguments, launch.environment), launch

    return start


def test_rank_that_cannot_end_is_killed_soon_after_another_failed(start: Start) -> None:
    began = time.monotonic()
    codes = run(*start(WAITS_FOR_EVER)).codes
    assert codes == [1, 3, None]
    assert time.monotonic() - began < TORCHS_WAIT_SECONDS


def test_rank_that_keeps_its_state_is_waited_for(start: Start, tmp_path: Path) -> None:
    assert run(*start(KEEPS_ITS_STATE)).codes == [1, 3, None]
    assert (tmp_path / "kept").read_text() == "3"
    assert not list((tmp_path / "records").glob(f"*{PENDING}"))


def test_failure_of_a_rank_that_ended_later_can_be_the_cause(start: Start) -> None:
    tree, launch = start(CAUSE_ENDS_LATE)
    run(tree, launch)
    assert json.loads(launch.failure_file.read_text())["message"] == "ValueError: the cause"


def test_rank_that_the_launcher_ended_has_not_failed(start: Start) -> None:
    assert run(*start(ENDED_BY_SIGTERM)).codes == [1, 3, None]
