"""When one rank of a node fails, the launcher ends the node's other ranks within about a second."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from ddp_agent.launcher.peer_stop import stop_peers
from ddp_agent.processes.launch import Launch
from ddp_agent.processes.supervise import ColdTree, ProcessTree, WarmTree
from ddp_agent.processes.warm import Standby
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import RankPhase
from ddp_wire.records import PENDING
from tests.agent.launcher.test_warm_cold import prepared, run
from tests.agent.support import heartbeat

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does"),
    pytest.mark.usefixtures("adopting_standby"),
    pytest.mark.slow,
]


class Start(Protocol):
    """Function that starts an attempt of two ranks, which run a program."""

    def __call__(self, program: str, *, done: bool = False) -> tuple[ProcessTree, Launch]:
        """Start the attempt. With `done`, both ranks have announced that their work is done."""


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
CRASHES_AFTER_THE_WORK = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(home / f"ready-{rank}").touch()
wait_for("ready-0")
wait_for("ready-1")
if rank == 0:
    os._exit(3)
time.sleep(2)  # A second is not enough.
(home / "uploaded").touch()
os._exit(0)
"""
ON_SIGTERM = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit({code}))
print(flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(params=["warm", "cold"])
def start(request: pytest.FixtureRequest, standby: Standby, tmp_path: Path) -> Start:
    """Return the function, with forked or with executed ranks."""
    (tmp_path / "records").mkdir()

    def start(program: str, *, done: bool = False) -> tuple[ProcessTree, Launch]:
        (tmp_path / "program.py").write_text(HEAD + program, encoding="utf-8")
        launch = prepared(tmp_path, 3, str(tmp_path / "program.py"))
        for rank in range(2 if done else 0):
            beat = heartbeat(attempt=3, rank=rank, local_rank=rank, phase=RankPhase.DONE, result=0)
            file = Path(launch.environment[Env.BEATS_DIR]) / f"{rank}.json"
            file.write_text(beat.to_json())
        folder = {str(Env.RECORDS_DIR): str(tmp_path / "records")}
        launch = replace(launch, environment=launch.environment | folder)
        if request.param == "cold":
            return ColdTree(launch.command, launch.environment), launch
        return WarmTree(standby, launch.arguments, launch.environment), launch

    return start


def test_rank_that_cannot_end_is_killed_soon_after_another_failed(
    start: Start, tmp_path: Path
) -> None:
    tree, launch = start(WAITS_FOR_EVER)
    assert run(tree, launch).codes == [1, 3, None]
    failed = (tmp_path / "ready").stat().st_mtime
    assert launch.failure_file.stat().st_mtime - failed < TORCHS_WAIT_SECONDS


def test_rank_that_keeps_its_state_is_waited_for(start: Start, tmp_path: Path) -> None:
    assert run(*start(KEEPS_ITS_STATE)).codes == [1, 3, None]
    assert (tmp_path / "kept").read_text() == "3"
    assert not list((tmp_path / "records").glob(f"*{PENDING}"))


def test_failure_of_a_rank_that_ended_later_can_be_the_cause(start: Start) -> None:
    tree, launch = start(CAUSE_ENDS_LATE)
    run(tree, launch)
    assert json.loads(launch.failure_file.read_text())["message"] == "ValueError: the cause"


def test_rank_that_still_ends_after_the_work_of_all_ranks_is_not_killed(
    start: Start, tmp_path: Path
) -> None:
    run(*start(CRASHES_AFTER_THE_WORK, done=True))
    assert (tmp_path / "uploaded").exists()


def test_only_ranks_that_failed_by_themselves_are_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(Env.RECORDS_DIR, raising=False)
    codes: tuple[int, ...] = (0, 1, ExitCode.PREEMPTED)
    programs = ["exit(3)", "exit(0)", "import time; time.sleep(600)"]
    programs += [ON_SIGTERM.format(code=int(code)) for code in codes]
    ranks = {
        rank: subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for rank, program in enumerate(programs)
    }
    for rank in (0, 1):
        ranks[rank].wait()
    for rank in (3, 4, 5):
        output = ranks[rank].stdout
        assert output is not None
        output.readline()  # It has its handler.
    failed = stop_peers(ranks)
    assert {rank: each.returncode for rank, each in failed.items()} == {0: 3, 4: 1}
    for each in ranks.values():
        each.communicate(timeout=60)
