"""The agent as a process: its liveness, its exit code and its last word."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.agent import STOP_GRACE_SECONDS, Agent
from ddp_agent.main import main
from ddp_wire.contract import AgentPhase, AgentStatus, Env, ExitCode
from tests.agent.harness import Bench, stub_torchrun
from tests.agent.support import environment, orphanage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with orphanage():
        yield


def test_an_agent_whose_loop_stands_still_is_not_alive(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pace=1.0)
    agent: Agent = bench.agent
    assert agent.alive()
    bench._monotonic += STOP_GRACE_SECONDS
    assert agent.alive(), "saving may take its time"
    bench._monotonic += 15.0
    assert not agent.alive()


@pytest.fixture
def _container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment and signal handlers of a worker container."""
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
        ("beat('Training', progress={'step': 3})", ExitCode.OK, "Succeeded"),
        (
            "on_sigterm(lambda: sys.exit(0)); os.kill(os.getppid(), signal.SIGTERM); for_ever()",
            ExitCode.PREEMPTED,
            "Preempted",
        ),
    ],
    ids=["success", "SIGTERM"],
)
def test_the_process_exits_as_its_run_did_and_leaves_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, last: str
) -> None:
    stub_torchrun(monkeypatch, script)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    word = AgentStatus.model_validate_json((tmp_path / "termination.json").read_bytes())
    assert (word.attempt, word.phase) == (1, AgentPhase(last))
