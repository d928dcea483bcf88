"""An agent as a container starts it, with real torch, whose standby is ended beneath it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from ddp_wire.contract import AgentPhase, AgentStatus, Env
from ddp_wire.processes import children, descendants
from tests.agent.support import environment, wait_until
from tests.agent.test_warm import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


IMPORTS_SECONDS = 60.0
"""torch is imported anew, on a machine that may be busy."""


class Container:
    """A worker container of one node and one rank."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        (home / "train.py").write_text("import time; time.sleep(600)")
        given = {
            Env.NODES: "1",
            Env.PROCS_PER_NODE: "1",
            Env.RENDEZVOUS_HOST: "127.0.0.1",
            Env.POD_ADDRESS: "127.0.0.1",
            Env.RENDEZVOUS_PORT_BASE: str(free_port() - 1),
            Env.AGENT_BIND: "127.0.0.1",
            Env.AGENT_PORT: str(self.port),
            Env.TASK: None,
            Env.COMMAND: json.dumps(["python", str(home / "train.py")]),
            Env.STANDBY: "true",
        }
        self.order(1)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddp_agent"],
            env={**os.environ, **environment(home, **given)},
            stdout=(home / "log").open("w"),
            stderr=subprocess.STDOUT,
        )

    def order(self, attempt: int) -> None:
        (self.home / "attempt").write_text(str(attempt))

    def until(self, attempt: int, phase: AgentPhase) -> None:
        def reached() -> bool:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
                    said = AgentStatus.model_validate_json(answer.read())
            except OSError:
                return False
            return (said.attempt, said.phase) == (attempt, phase)

        wait_until(reached, f"attempt {attempt} is {phase}", IMPORTS_SECONDS)

    def standby(self) -> int:
        """Process id of the only standby."""
        (found,) = [p for p in children(self.process.pid) if "ddp_agent.standby" in _line(p)]
        return found

    def end(self) -> int:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        return self.process.wait(10)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.end()


def test_a_standby_that_is_ended_with_its_ranks_is_replaced(container: Container) -> None:
    container.until(1, AgentPhase.TRAINING)
    first = container.standby()
    assert descendants(first), "the ranks are its forks"
    os.kill(first, signal.SIGKILL)
    container.until(1, AgentPhase.FAILED)
    container.order(2)
    container.until(2, AgentPhase.TRAINING)
    second = container.standby()
    assert second != first
    assert descendants(second), "the next attempt is not a cold one"


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
