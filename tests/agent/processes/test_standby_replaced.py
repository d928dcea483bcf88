"""An agent with real torch, started as in a container, whose standby is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from ddp_wire.contract import Env
from ddp_wire.messages import AgentPhase, AgentStatus
from ddp_wire.processes import children, descendants
from tests.agent.support import environment, wait_until
from tests.harness.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


IMPORTS_SECONDS = 60.0
"""Time limit for the imports of torch on a busy machine, in seconds."""


class Container:
    """Worker container of a job with one node and one rank."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        (home / "train.py").write_text("import time; time.sleep(600)")
        given = {
            Env.NODES: "1",
            Env.PROCS_PER_NODE: "1",
            Env.RENDEZVOUS_HOST: "127.0.0.1",
            Env.POD_ADDRESS: "127.0.0.1",
            Env.RENDEZVOUS_PORT_BASE: str(free_port(2) - 1),
            Env.AGENT_BIND: "127.0.0.1",
            Env.AGENT_PORT: str(self.port),
            Env.TASK: None,
            Env.COMMAND: json.dumps(["python", str(home / "train.py")]),
            Env.STANDBY: "true",
        }
        self.write_order(1)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddp_agent"],
            env={**os.environ, **environment(home, **given)},
            stdout=(home / "log").open("w"),
            stderr=subprocess.STDOUT,
        )

    def write_order(self, attempt: int) -> None:
        (self.home / "attempt").write_text(str(attempt))

    def wait_for(self, attempt: int, phase: AgentPhase) -> None:
        def reached() -> bool:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
                    status = AgentStatus.model_validate_json(answer.read())
            except OSError:
                return False
            return (status.attempt, status.phase) == (attempt, phase)

        try:
            wait_until(reached, f"attempt {attempt} is {phase}", IMPORTS_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self.home / 'log').read_text()}") from error

    def standby(self) -> int:
        """Return the process id of the only standby."""
        (found,) = [
            p for p in children(self.process.pid) if "ddp_agent.launcher.standby" in _line(p)
        ]
        return found

    def kill(self) -> int:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        return self.process.wait(10)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.kill()


def test_standby_killed_with_its_ranks_is_replaced(container: Container) -> None:
    container.wait_for(1, AgentPhase.TRAINING)
    first = container.standby()
    assert descendants(first), "the ranks must be its forks"
    os.kill(first, signal.SIGKILL)
    container.wait_for(1, AgentPhase.FAILED)
    container.write_order(2)
    container.wait_for(2, AgentPhase.TRAINING)
    second = container.standby()
    assert second != first
    assert descendants(second), "the next attempt must start warm"


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
