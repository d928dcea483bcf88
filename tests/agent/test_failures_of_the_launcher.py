"""Attempts whose command cannot start, or whose launcher is killed."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_wire.contract import Env, ExitCode
from tests.agent.harness import AgentHarness, phase, stub_torchrun
from tests.agent.support import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["nosuchprogram", "--x"], r"the program nosuchprogram must be in PATH \(.+\)"),
        (["./no.sh"], r"the program \./no\.sh must be an executable file"),
        (["python", "nofile.py"], r"the script nofile\.py must exist, but /.+ has no such file"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_case_112_missing_program_fails_the_attempt_in_one_sentence(
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


def test_case_113_launcher_killed_for_lack_of_memory_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr("ddp_agent.attempt_process.out_of_memory_kills", lambda: next(counts))
    limit = (160 << 20, Path("/sys/fs/cgroup/memory.max"))
    monkeypatch.setattr("ddp_agent.attempt_process.memory_limit", lambda: limit)
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
