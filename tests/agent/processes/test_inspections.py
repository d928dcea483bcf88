"""The agent answers the questions of users about its running ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ddp_agent.clock import Clock
from ddp_agent.processes.inspections import ANSWER_SECONDS, STALE_SECONDS, Questions
from ddp_agent.processes.launch import Launch
from ddp_agent.processes.rank_processes import RankProcesses
from ddp_wire.contract import Env
from ddp_wire.messages import InspectionRequest
from tests.agent.support import config, wait_until

RANK = """
import sys, time
from ddp_wire.stacks import answer_stack_requests
def waits_here():
    print("ready", flush=True)
    time.sleep(600)
answer_stack_requests(sys.argv[1], sys.argv[2])
waits_here()
"""


class Bench:
    """Agent with a clock that the test sets, and the lines that it has logged."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.now, self.lines = 0.0, list[str]()
        clock = Clock(monotonic=lambda: self.now)
        self.inspections = Questions(config(home, **variables), clock, self.lines.append)
        self.launch = Launch(1, [], {}, home, home, None, home / "failure")

    def ask(self, question: str, job_uid: str = "uid-1") -> bool:
        return self.inspections.accept(InspectionRequest(job_uid=job_uid, question=question))

    def look(self) -> list[str]:
        """Let the loop pass once. Return all lines."""
        self.inspections.look(self.launch)
        return self.lines

    def has(self, lines: set[str]) -> bool:
        """Let the loop pass once. Return whether it has logged all these lines."""
        return lines <= set(self.look())

    def run(self, first_rank: int = 0, **processes: int) -> None:
        """Let the launcher report that ranks run, by local rank."""
        running = {int(name[1:]): process for name, process in processes.items()}
        RankProcesses(first_rank=first_rank, running=running).write(self.launch.heartbeats_dir)


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Yield a function that starts a real process as a local rank, and returns its id."""
    started: list[subprocess.Popen[str]] = []

    def start(local_rank: int) -> int:
        command = [sys.executable, "-c", RANK, str(tmp_path), str(local_rank)]
        rank = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(rank)
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        return rank.pid

    yield start
    for rank in started:
        rank.kill()
        rank.communicate()


def test_all_ranks_show_their_line_at_each_question(
    tmp_path: Path, start_rank: Callable[[int], int]
) -> None:
    bench = Bench(tmp_path)
    bench.run(first_rank=4, r0=start_rank(0), r1=start_rank(1))
    for id_ in ("a1", "b2"):
        assert bench.ask(f"stacks:{id_}")
        ends = {f"inspection {id_} rank {rank} ends" for rank in (4, 5)}
        wait_until(partial(bench.has, ends), "both ranks answer")
        for rank in (4, 5):
            mine = [one for one in bench.lines if one.startswith(f"inspection {id_} rank {rank}:")]
            assert sum("in waits_here" in one for one in mine) == 1
    count = len(bench.lines)
    assert len(bench.look()) == count


def test_rank_that_does_not_answer_is_named_after_the_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "0.stacks").touch()
    with subprocess.Popen(["sleep", "60"]) as silent:
        bench.run(first_rank=2, r0=silent.pid)
        bench.ask("stacks:a")
        bench.look()
        silent.kill()
    bench.now = ANSWER_SECONDS - 0.1
    assert bench.look() == []
    bench.now = ANSWER_SECONDS
    assert bench.look() == [
        "inspection a rank 2: no answer within 2 s",
        "inspection a rank 2 ends",
    ]


def test_rank_without_a_handler_is_not_asked_and_the_answer_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(r0=os.getpid())  # The signal would end this process.
    bench.ask("stacks:a")
    bench.look()
    first, last = bench.look()
    assert first.startswith("inspection a rank 0: no answer: a command shows its stacks if it is a")
    assert last == "inspection a rank 0 ends"


def test_attempt_that_ends_during_the_answer_leaves_no_question_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(r0=os.getpid())
    bench.ask("stacks:a")
    bench.look()
    bench.launch = Launch(2, [], {}, tmp_path / "other", tmp_path, None, tmp_path / "failure")
    bench.now = ANSWER_SECONDS
    assert bench.look()[-1] == "inspection a rank 0 ends"
    assert len(bench.look()) == 2


def test_question_waits_for_the_ranks_but_not_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path, **{Env.CHECKPOINT_DIR: str(tmp_path)})
    bench.ask("profile:a:5")
    assert bench.look() == []
    bench.now = STALE_SECONDS - 1
    bench.run(r0=1)
    assert len(bench.look()) == 1
    bench.ask("profile:b:5")
    bench.now += STALE_SECONDS + 1
    assert len(bench.look()) == 1


def test_trace_is_requested_by_the_node_of_rank_0_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, **{Env.CHECKPOINT_DIR: str(tmp_path)})
    bench.run(first_rank=2, r0=1)
    bench.ask("profile:a:5")
    assert bench.look() == []
    bench.run(r0=1)
    bench.ask("profile:b:7")
    assert bench.look() == [
        f"inspection b: rank 0 writes the trace of 7 updates to {tmp_path}/profiles"
    ]
    assert json.loads((tmp_path / "PROFILE.json").read_text()) == {"from": 0, "steps": 7}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "refused: a trace needs spec.checkpoint, whose volume takes it"),
        (
            {Env.CHECKPOINT_DIR: "/missing", Env.TASK: None, Env.COMMAND: "[]"},
            "refused: only the bundled loop writes traces, and the job has a command",
        ),
        (
            {Env.CHECKPOINT_DIR: "/dev/null"},
            "refused: /dev/null/PROFILE.json: File exists",
        ),
    ],
)
def test_impossible_trace_is_refused_with_a_sentence(
    tmp_path: Path, variables: dict[str, str], sentence: str
) -> None:
    bench = Bench(tmp_path, **variables)
    bench.run(r0=1)
    bench.ask("profile:a:5")
    assert bench.look() == [f"inspection a: {sentence}"]


def test_question_is_answered_once_and_only_for_its_job(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(r0=1)
    assert not bench.ask("profile:a:5", job_uid="another")
    assert not bench.ask("profile:a:500")
    assert bench.look() == []
    for _ in range(3):  # A new operator repeats it.
        assert bench.ask("profile:a:5")
        bench.look()
    assert len(bench.lines) == 1
