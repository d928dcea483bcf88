"""The agent as a process: its liveness, its exit code and its termination message."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.main import main
from ddp_wire.contract import Env, ExitCode
from ddp_wire.messages import AgentPhase, AgentStatus
from tests.agent.harness import AgentHarness, stub_torchrun
from tests.agent.support import adopting_orphans, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


def test_liveness_probe_fails_while_the_agents_loop_hangs(tmp_path: Path) -> None:
    node = AgentHarness(tmp_path, tick_seconds=1.0)
    assert node.agent.is_alive()
    node.monotonic += 59.0
    assert node.agent.is_alive()
    node.monotonic += 1.0
    assert not node.agent.is_alive()


@pytest.fixture
def _container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Environment and signal handlers of a worker container."""
    changes = {Env.NODES: "1", Env.PROCS_PER_NODE: "1", Env.AGENT_PORT: "0"}
    for name, value in environment(tmp_path, **changes, **{Env.AGENT_BIND: "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "attempt").write_text("1")
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_container")
@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("heartbeat('Training', progress={'step': 3})", ExitCode.OK, "Succeeded"),
        (
            "on_sigterm(lambda: sys.exit(0)); os.kill(os.getppid(), signal.SIGTERM); run_forever()",
            ExitCode.PREEMPTED,
            "Preempted",
        ),
    ],
    ids=["success", "SIGTERM"],
)
def test_agent_process_exits_with_the_code_of_its_run_and_writes_a_termination_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, last: str
) -> None:
    stub_torchrun(monkeypatch, script)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    message = AgentStatus.model_validate_json((tmp_path / "termination.json").read_bytes())
    assert (message.attempt, message.phase) == (1, AgentPhase(last))


@pytest.mark.usefixtures("_container")
@pytest.mark.parametrize("variable", [Env.AGENT_PORT, Env.BARRIER_PORT])
def test_agent_process_reports_a_taken_port_as_a_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(Env.NODES, "2")
    monkeypatch.setenv(Env.BARRIER_PORT, "0")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv(variable, str(port))
        with pytest.raises(SystemExit) as ended:
            main()
    assert f"port {port} must be free" in str(ended.value.code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["ddp_agent.processes.warm", "ddp_agent.main"])
def test_signal_during_the_imports_ends_the_agent_at_once(
    module: str, number: signal.Signals
) -> None:
    """PID 1 without a handler would ignore the signal, and the pod would stay."""
    program = f"""
import os, sys
from importlib.abc import MetaPathFinder
class Signal(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Signal())
from ddp_agent.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == ExitCode.PREEMPTED
