"""A program cannot tell whether its rank is a fork of the standby or a new interpreter.

Each program runs in both ways, with two ranks. Output, exit code and random streams must agree.
"""

import functools
import json
import os
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_agent.processes.launch import Launch, prepare
from ddp_agent.processes.supervise import ColdTree, ProcessTree, WarmTree
from ddp_agent.processes.warm import Standby
from ddp_wire.contract import Env, rendezvous_port
from tests.agent.support import config, environment, members, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does"),
    pytest.mark.usefixtures("adopting_standby"),
]

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
assert len(PROGRAMS) >= 25
RANKS = 2


@dataclass
class Result:
    """Outputs and exit codes of one run of a program."""

    codes: list[int | None]
    """Exit code of torchrun, then the code or signal of the rank that failed first."""
    outputs: list[str]
    """stdout of each rank, then stderr of each rank."""


@functools.cache
def free_port_base() -> int:
    """Return a base whose ports for both attempts are free, below those of outgoing connections."""
    base = 20_000 + os.getpid() % 10_000
    while not all(is_free(rendezvous_port(base, attempt)) for attempt in (1, 2)):
        base += 2
    return base


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def prepared(home: Path, attempt: int, *program: str) -> Launch:
    """Return an attempt of one node with two ranks that run a program."""
    one_node = {
        Env.NODES: "1",
        Env.PROCS_PER_NODE: str(RANKS),
        Env.RENDEZVOUS_HOST: "127.0.0.1",
        Env.POD_ADDRESS: "127.0.0.1",
        Env.RENDEZVOUS_PORT_BASE: str(free_port_base()),
        Env.TASK: None,
        Env.COMMAND: json.dumps(["python", *program, "--flag", "a b"]),
    }
    given = environment(home, **one_node)
    made = config(home, **one_node)
    return prepare(made, members(made, attempt), home, {**os.environ, **given})


def run(tree: ProcessTree, launch: Launch) -> Result:
    wait_until(lambda: tree.poll() is not None, "the program ends", 60)
    codes: list[int | None] = [tree.returncode]
    if launch.failure_file.exists():
        failure = json.loads(launch.failure_file.read_text())
        codes += [failure.get("exitCode"), failure.get("signal")]
    names = [f"{rank}/{stream}.log" for stream in ("stdout", "stderr") for rank in range(RANKS)]
    outputs = [next(launch.log_dir.glob(f"*/attempt_0/{name}")).read_text() for name in names]
    return Result(codes, [normal(text, launch) for text in outputs])


def normal(text: str, launch: Launch) -> str:
    """Return output without the parts that differ between any two runs."""
    text = text.replace(str(launch.log_dir.parent), "HOME")
    return re.sub(r"0x[0-9a-f]+", "0xADDRESS", text)


def draws(result: Result) -> list[str]:
    """Return the random numbers that the ranks drew."""
    return [line for text in result.outputs for line in text.splitlines() if "draw" in line]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_program_prints_the_same_after_a_warm_and_a_cold_start(
    standby: Standby, tmp_path: Path, program: Path
) -> None:
    cold, forked = (prepared(tmp_path, attempt, str(program)) for attempt in (1, 2))
    expected = run(ColdTree(cold.command, cold.environment), cold)
    found = run(WarmTree(standby, forked.arguments, forked.environment), forked)
    if draws(expected):
        everything = draws(expected) + draws(found)
        assert len(set(everything)) == len(everything), "random streams must be independent"
        return
    assert found == expected


@pytest.mark.slow
def test_missing_module_is_one_line_of_error_after_a_warm_and_a_cold_start(
    standby: Standby, tmp_path: Path
) -> None:
    cold, forked = (prepared(tmp_path, attempt, "-m", "os.nofile") for attempt in (1, 2))
    expected = run(ColdTree(cold.command, cold.environment), cold)
    found = run(WarmTree(standby, forked.arguments, forked.environment), forked)
    assert found.codes == expected.codes
    # torchrun may end the other rank before that one prints anything.
    [text] = {text for text in [*expected.outputs, *found.outputs] if text}
    assert len(text.splitlines()) == 1
    assert "'os.nofile'" in text
