"""Attempts whose launcher cannot start, must not start, or is killed."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_agent.orders import Interruption
from ddp_agent.processes.attempt_process import REMINDER_SECONDS, AttemptStarter
from ddp_agent.processes.launch import command_problem
from ddp_wire.contract import Env, ExitCode
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans, config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


EMPTY = "python needs a script, a module or code, but gets none or an empty argument"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["nosuchprogram", "--x"], r"the program nosuchprogram must be in PATH \(.+\)"),
        (["./no.sh"], r"the program \./no\.sh must be an executable file"),
        (["python", "nofile.py"], r"the script nofile\.py must exist, but /.+ has no such file"),
        (["python", "-m", "nomodule"], r"no module named nomodule is installed or in /.+"),
        (["python", "-m", "nopackage.main"], r"no module named nopackage is installed or in /.+"),
        *((["python", *rest], EMPTY) for rest in (["-c", ""], ["-m", ""], [""], ["-m"])),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_missing_program_fails_the_attempt_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: str
) -> None:
    stub_torchrun(monkeypatch, "raise AssertionError('torchrun must not start')")
    node = AgentHarness(tmp_path, env={Env.COMMAND: json.dumps(command), Env.TASK: None})
    node.write_order("1")
    node.when(phase("Failed"), node.orders.stop)
    assert node.run() == ExitCode.BAD_INPUT, "another attempt could not help"
    assert node.phases() == ["1:Failed"]
    assert node.status.failure is not None
    assert re.fullmatch(f"spec\\.command: {expected}", node.status.failure.message)
    assert not node.status.failure.traceback


def test_empty_arguments_reach_the_program(tmp_path: Path) -> None:
    for command in (["sh", "-c", ""], ["python", __file__, ""], ["python", "-m", "json", ""]):
        node = config(tmp_path, **{Env.COMMAND: json.dumps(command), Env.TASK: None})
        assert command_problem(node) == ""


@pytest.mark.parametrize("module", ["json.tool", "own", "folder.main", "sys"])
def test_command_that_names_an_importable_module_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    (tmp_path / "own.py").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    command = {Env.COMMAND: json.dumps(["python", "-m", module]), Env.TASK: None}
    node = config(tmp_path, **command)
    assert command_problem(node, {}) == ""
    missing = module in {"own", "folder.main"}  # The safe path lacks the working directory.
    assert bool(command_problem(node, {"PYTHONSAFEPATH": "1"})) is missing


def test_launcher_killed_for_lack_of_memory_is_reported_as_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(
        "ddp_agent.processes.attempt_process.out_of_memory_kills", lambda: next(counts)
    )
    limit = (160 << 20, Path("/sys/fs/cgroup/memory.max"))
    monkeypatch.setattr("ddp_agent.processes.attempt_process.memory_limit", lambda: limit)
    stub_torchrun(monkeypatch, "os.kill(os.getpid(), 9)")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Failed"), node.orders.stop)
    node.run()
    failure = node.status.failure
    assert failure is not None
    assert (failure.signal, failure.out_of_memory, failure.secondary) == ("SIGKILL", True, False)
    assert failure.message.endswith(
        "the kernel killed a process at the memory limit of 160 MiB (/sys/fs/cgroup/memory.max)"
    )


@pytest.mark.parametrize("how", ["stop", "next"])
def test_order_ends_the_wait_for_the_imports_of_the_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stub_torchrun(monkeypatch, "if attempt == 1: raise AssertionError('it was interrupted')")
    node = AgentHarness(tmp_path)
    waits = iter([False] * 3)
    monkeypatch.setattr(AttemptStarter, "wait_ready", lambda _: next(waits, how == "next"))
    node.write_order("1")
    order = node.orders.interruption
    asked = iter(range(9))

    def interruption(attempt: int) -> Interruption | None:
        if next(asked, 9) == 1:
            node.orders.stop() if how == "stop" else node.write_order("2")
        return order(attempt)

    monkeypatch.setattr(node.orders, "interruption", interruption)
    code = node.run()
    assert code == (ExitCode.PREEMPTED if how == "stop" else ExitCode.OK)
    assert "1:Starting" not in node.phases()


class LostStandby:
    """Standby that has ended, and a replacement whose imports last (a fake)."""

    imports_seconds = None

    def __init__(self, made: list["LostStandby"], lost: int, look: Callable[[], None]) -> None:
        made.append(self)
        self._is_lost, self._look = len(made) <= lost, look

    def is_alive(self) -> bool:
        return not self._is_lost

    def wait_ready(self, _seconds: float) -> bool:
        self._look()
        return False

    def close(self) -> None:
        """Do nothing, because no process runs."""


@pytest.mark.parametrize("lost", [1, 2])
def test_order_ends_the_wait_for_the_replacement_of_a_lost_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """If the replacement is lost, too, the attempt starts cold."""
    monkeypatch.setattr("ddp_agent.processes.attempt_process.READY_SECONDS", 2.0)
    stub_torchrun(monkeypatch, "")
    node, made = AgentHarness(tmp_path, env={Env.STANDBY: "true"}), list[LostStandby]()
    monkeypatch.setattr(
        "ddp_agent.processes.attempt_process.Standby",
        lambda _environment: LostStandby(made, lost, node.orders.stop),
    )
    node.write_order("1")
    assert node.run() == (ExitCode.PREEMPTED if lost == 1 else ExitCode.OK)
    assert ("1:Starting" in node.phases()) is (lost == 2)
    assert len(made) == 2


@pytest.mark.parametrize(
    "code", ["sys.exit(3)", "open(os.environ['DDP_FAILURE_FILE'], 'w').write('{'); sys.exit(3)"]
)
def test_agent_reports_the_exit_code_of_a_torchrun_without_failure_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    stub_torchrun(monkeypatch, code)
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(phase("Failed"), node.orders.stop)
    assert node.run() == ExitCode.FAILED
    failure = node.status.failure
    assert failure is not None
    assert failure.message == "torchrun ended with exit code 3 and wrote no readable failure file"


def test_agent_signals_ranks_directly_if_torchrun_does_not_forward_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun loses a signal that arrives while it starts its ranks."""
    rank = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(85)); time.sleep(60)"
    stub_torchrun(
        monkeypatch,
        f"""
on_sigterm(lambda: None)
rank = subprocess.Popen([sys.executable, "-S", "-c", {rank!r}])
heartbeat("Training")
code = rank.wait()
open({str(tmp_path / "code")!r}, "w").write(str(code))
""",
    )
    node = AgentHarness(tmp_path, tick_seconds=REMINDER_SECONDS / 40)
    node.write_order("1")
    node.when(phase("Training"), lambda: node.write_order("stop"))
    assert node.run() == ExitCode.PREEMPTED
    assert (tmp_path / "code").read_text() in {"85", "-15"}
