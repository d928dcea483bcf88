"""The ranks of a command train once they are connected to the store of their process group."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.processes.launch import Launch, prepare
from ddp_agent.processes.rank_processes import RankProcesses
from ddp_agent.processes.rank_sockets import all_connected
from ddp_agent.status_writer import LOOK_SECONDS, StatusWriter
from ddp_wire.contract import Env
from ddp_wire.messages import AgentPhase
from tests.agent.support import config, environment, members, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RANK = """
import socket, sys
sys.stdin.readline()  # As a script that imports and prepares for a while.
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.readline()
"""


@pytest.fixture
def store() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def rank(store: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-S", "-c", RANK, str(port_of(store))]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def port_of(store: socket.socket) -> int:
    return int(store.getsockname()[1])


def connect(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


def test_connection_is_counted_for_the_process_that_holds_it(
    store: socket.socket, rank: subprocess.Popen[bytes]
) -> None:
    port = port_of(store)
    assert not all_connected([rank.pid], port)
    connect(rank)
    wait_until(lambda: all_connected([rank.pid], port), "the rank is connected")
    assert not all_connected([rank.pid, 1 << 22], port), "another rank is not"
    assert not all_connected([rank.pid], port + 1)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Return an attempt of two nodes with one rank each, which torchrun has started."""
    given = {Env.TASK: None, Env.COMMAND: json.dumps(["python", "t.py"]), Env.PROCS_PER_NODE: "1"}
    made_for = config(tmp_path, **given)
    made = prepare(made_for, members(made_for), tmp_path / "scratch", environment(tmp_path))
    log = made.log_dir / "run" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.touch()
    return made


def test_command_does_not_count_as_training_before_it_has_a_process_group(
    tmp_path: Path, launch: Launch, store: socket.socket, rank: subprocess.Popen[bytes]
) -> None:
    given = {Env.TASK: None, Env.COMMAND: json.dumps(["python", "t.py"]), Env.PROCS_PER_NODE: "1"}
    ticks = iter(range(10**9))
    clock = Clock(monotonic=lambda: next(ticks) * 2 * LOOK_SECONDS)
    made = config(tmp_path, **given)
    writer = StatusWriter(made, clock)
    writer.start_attempt(members(made), [])
    writer.launched()

    def trains() -> bool:
        writer.update_from_ranks(launch)
        return writer.status.phase is AgentPhase.TRAINING

    assert not trains(), "the launcher has not told which ranks run"
    running = RankProcesses(first_rank=0, running={0: rank.pid}, master_port=port_of(store))
    running.write(launch.heartbeats_dir)
    assert not trains()
    os.kill(rank.pid, 0)
    connect(rank)
    wait_until(trains, "the rank trains")
