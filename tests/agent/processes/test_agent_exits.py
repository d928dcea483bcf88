"""Tests of the end of an attempt in which a rank crashes after its work is done."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.agent import NEXT_ORDER_SECONDS
from ddp_agent.clock import Ticker
from ddp_agent.network.barrier_client import StartBarrier
from ddp_wire.contract import ExitCode
from ddp_wire.delays import LONGEST_BACKOFF_SECONDS
from ddp_wire.messages import AgentPhase
from tests.agent.harness import AgentHarness, stub_torchrun
from tests.agent.support import adopting_orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


def test_failed_agent_outlasts_the_longest_delay_of_an_attempt() -> None:
    """Otherwise no restart after the longest delay could be in place."""
    assert NEXT_ORDER_SECONDS >= LONGEST_BACKOFF_SECONDS + 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "result", "ended"),
    [("Done", 0, "Succeeded"), ("Done", 85, "Preempted"), ("Training", None, "Failed")],
)
def test_crash_after_the_work_is_done_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, result: int | None, ended: str
) -> None:
    stub_torchrun(
        monkeypatch,
        f"""
heartbeat({phase!r}, result={result!r})
fail(rank=0, signal="SIGABRT")
""",
    )
    node = AgentHarness(tmp_path)
    node.write_order("1")
    if ended == "Failed":
        node.when(lambda status: status.phase is AgentPhase.FAILED, lambda: node.stop("terminate"))
    code = node.run()
    assert node.status.phase is AgentPhase(ended)
    problems = [one.message for one in node.status.exit_problems or ()]
    crash = "was killed by SIGABRT after its work was done"
    assert problems == ([crash] if ended == "Succeeded" else [])
    assert code == {"Succeeded": 0, "Preempted": ExitCode.PREEMPTED, "Failed": 134}[ended]


class OpenBarrier(StartBarrier):
    """Barrier that lets the attempt start, and then reports that node 1 was replaced (a fake)."""

    is_done = False
    """Whether the ranks have done their work. Node 1 is replaced afterwards."""

    def wait(self, _attempt: int, _ticker: Ticker) -> bool:
        return True

    def replaced_node(self) -> int | None:
        return 1 if self.is_done else None

    def obstacle(self, attempt: int) -> None:
        """Return no obstacle."""

    def close(self) -> None:
        """Do nothing, because no connection is open."""


@pytest.mark.parametrize(
    ("phase", "result", "ended"),
    [("Done", 0, "Succeeded"), ("Done", 85, "Preempted"), ("Training", None, "Preempted")],
)
def test_node_that_is_stopped_after_its_work_is_done_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, result: int | None, ended: str
) -> None:
    stub_torchrun(monkeypatch, f"heartbeat({phase!r}, result={result!r})\nrun_forever()")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(lambda status: bool(status.ranks), lambda: node.stop("terminate"))
    code = node.run()
    assert node.status.phase is AgentPhase(ended)
    assert code == (ExitCode.OK if ended == "Succeeded" else ExitCode.PREEMPTED)


def test_next_attempt_follows_although_the_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "heartbeat('Done', result=0)\nif attempt == 1: run_forever()")
    node = AgentHarness(tmp_path)
    node.write_order("1")
    node.when(lambda status: bool(status.ranks), lambda: node.write_order("2"))
    assert node.run() == ExitCode.OK
    assert (node.status.attempt, node.status.phase) == (2, AgentPhase.SUCCEEDED)


def test_replaced_peer_ends_the_attempt_although_the_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_torchrun(monkeypatch, "heartbeat('Done', result=0)\nrun_forever()")
    barrier = OpenBarrier()
    node = AgentHarness(tmp_path, barrier=barrier)
    node.write_order("1")
    node.when(lambda status: bool(status.ranks), lambda: setattr(barrier, "is_done", True))
    node.when(lambda status: status.phase is AgentPhase.FAILED, lambda: node.stop("terminate"))
    node.run()
    assert node.status.failure is not None
    assert node.status.failure.secondary
