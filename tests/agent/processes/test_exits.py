"""Ranks whose work is done must exit within a limit, and their work counts in any case."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.hang_limits import HangLimits
from ddp_agent.processes.exits import LAUNCHER_SECONDS, ExitWatch, as_problem
from ddp_agent.processes.rank_processes import (
    RankProcesses,
    is_marked_killed,
    read_exit_failures,
    write_exit_failures,
)
from ddp_wire.contract import ExitCode
from ddp_wire.messages import Failure, LocalHeartbeat, RankPhase
from ddp_wire.stacks import read_stacks
from tests.agent.support import wait_until

LIMIT = 60
BUSY = "while True: pass"
IDLE = """
import sys, threading
from ddp_wire.stacks import answer_stack_requests
answer_stack_requests(sys.argv[1], "1")
threading.Thread(target=threading.Event().wait, name="uploader").start()
open(sys.argv[1] + "/ready", "w").close()
"""
"""Program that waits for a thread when it exits, as experiment trackers may leave behind."""

DEAF = """
import signal, sys, time
signal.signal(64, lambda *_: 0)
open(sys.argv[1] + "/ready", "w").close()
time.sleep(3600)
"""
"""A program that does not answer requests for its stacks."""


class Node:
    """Two local ranks, the second of which is a real process. A test moves the agent's clock."""

    def __init__(self, folder: Path, *, task: bool = True, **limits: float) -> None:
        self.folder, self.ahead, self.started = folder, 0.0, list[subprocess.Popen[bytes]]()
        clock = Clock(monotonic=lambda: time.monotonic() + self.ahead)
        self.watch = ExitWatch(HangLimits(**limits), folder, 1, 2, clock, reports_end=task)

    def done(self, *results: int | None) -> None:
        """Let local ranks report that they are done; None for a rank that trains."""
        for rank, result in enumerate(results):
            phase = RankPhase.TRAINING if result is None else RankPhase.DONE
            beat = LocalHeartbeat(
                attempt=1, rank=2 + rank, local_rank=rank, phase=phase, at=1.0, result=result
            )
            (self.folder / f"{rank}.json").write_text(beat.to_json())

    def runs(self, program: str, *, any_left: bool = True) -> subprocess.Popen[bytes]:
        """Start the process of local rank 1. Local rank 0 has exited if `any_left`."""
        command = [sys.executable, "-c", program, str(self.folder)]
        child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
        self.started.append(child)
        RankProcesses(first_rank=2, running={1: child.pid}, any_left=any_left).write(self.folder)
        return child

    def look_for(self, seconds: int, step: int = 5) -> bool:
        """Check repeatedly for this many seconds. Return whether the launcher exceeds its limit."""
        found = False
        for _ in range(0, seconds, step):
            self.ahead += step
            found = self.watch.look()
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for child in made.started:
        child.kill()
        child.wait()


def test_rank_that_does_not_exit_is_killed_with_its_stacks(node: Node) -> None:
    child = node.runs(IDLE)
    wait_until((node.folder / "ready").exists, "the end of the program")
    node.done(0, 0)
    assert not node.look_for(LIMIT)
    assert child.poll() is None, "within the limit it may flush and upload"
    node.look_for(5)
    wait_until(lambda: bool(read_stacks(node.folder, 1)), "the stacks of the rank")
    node.look_for(5)
    assert child.wait(10) == -9
    assert is_marked_killed(node.folder, 1)
    (problem,) = node.watch.problems() or []
    assert problem.rank == 3
    assert problem.message.startswith("did not exit within 6")
    assert problem.message.endswith("its work was done: it waits for a thread that does not end")
    assert "in _shutdown" in problem.stack
    assert node.watch.result == ExitCode.OK


@pytest.mark.parametrize("results", [(0, None), (None, None), (0,), (0, ExitCode.PREEMPTED)])
def test_ranks_that_still_work_have_no_exit_limit(
    node: Node, results: tuple[int | None, ...]
) -> None:
    child = node.runs(BUSY)
    node.done(*results)
    assert not node.look_for(20 * LIMIT)
    assert child.poll() is None
    assert node.watch.result is None
    assert node.watch.problems() is None


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, task=False)
    yield made
    for child in made.started:
        child.kill()
        child.wait()


def test_idle_rank_of_a_command_is_killed_after_another_has_exited(command: Node) -> None:
    node = command
    child = node.runs("import time; time.sleep(3600)")
    node.look_for(3 * LIMIT)
    assert child.wait(10) == -9
    (problem,) = node.watch.problems() or []
    assert "its process does not show why" in problem.message


@pytest.mark.parametrize(
    ("frame", "killed"),
    [
        ('/x/torch/distributed/distributed_c10d.py", line 2937 in all_reduce', False),
        ('/x/torch/autograd/graph.py", line 841 in _engine_run_backward', False),
        ('/x/torch/distributed/distributed_c10d.py", line 2 in destroy_process_group', True),
        ('/app/train.py", line 3 in <module>', True),
    ],
)
def test_rank_of_a_command_that_waits_in_a_collective_has_no_exit_limit(
    command: Node, frame: str, killed: bool
) -> None:
    """Another rank may have exited too early, so the work may not be done."""
    child = command.runs(DEAF)
    wait_until((command.folder / "ready").exists, "the program ignores the request for its stacks")
    stacks = f'Current thread 0x1 (most recent call first):\n  File "{frame}\n'
    (command.folder / "1.stacks").write_text(stacks)
    command.look_for(3 * LIMIT)
    assert is_marked_killed(command.folder, 1) == killed
    assert (child.wait(10) if killed else child.poll()) == (-9 if killed else None)


@pytest.mark.slow
def test_rank_of_a_command_that_computes_has_no_exit_limit(command: Node) -> None:
    """The rank may run a last evaluation, for example on rank 0."""
    node = command
    child = node.runs(BUSY)
    for _ in range(20):  # Its CPU time grows in real time only.
        time.sleep(0.02)
        node.ahead += 1.0
        node.watch.look()
    assert child.poll() is None
    assert node.watch.problems() is None


def test_rank_of_a_command_has_no_exit_limit_while_all_ranks_run(command: Node) -> None:
    node = command
    child = node.runs("import time; time.sleep(3600)", any_left=False)
    node.look_for(20 * LIMIT)
    assert child.poll() is None


def test_exit_limit_is_off_if_hang_detection_is_off(tmp_path: Path) -> None:
    node = Node(tmp_path, detect=False)
    node.done(0, 0)
    assert not node.look_for(20 * LIMIT)


def test_launcher_has_its_own_exit_limit_after_all_ranks_have_exited(node: Node) -> None:
    """The launcher of another node may never arrive."""
    node.done(0, 0)
    RankProcesses(first_rank=2, any_left=True).write(node.folder)
    assert not node.look_for(LIMIT + int(LAUNCHER_SECONDS) - 5)
    assert node.look_for(15)
    assert node.watch.problems() is None


FAILURES: list[tuple[Callable[[], Failure], str]] = [
    (
        lambda: Failure(attempt=1, at=1.0, rank=3, signal="SIGABRT"),
        "was killed by SIGABRT after its work was done",
    ),
    (
        lambda: Failure(attempt=1, at=1.0, rank=3, exit_code=7),
        "failed with exit code 7 after its work was done",
    ),
    (
        lambda: Failure(attempt=1, at=1.0, message="torchrun: the store is gone"),
        "failed after its work was done: torchrun: the store is gone",
    ),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_failure_after_the_work_is_done_is_an_exit_problem(
    node: Node, failure: Callable[[], Failure], message: str
) -> None:
    write_exit_failures(node.folder, [failure()])
    assert read_exit_failures(node.folder) == [failure()]
    (found,) = node.watch.problems() or []
    assert found == as_problem(failure())
    assert found.message == message
