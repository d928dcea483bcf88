"""Tests of the limit of open files."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ddp_wire.processes import describe_open_files, open_file_limit, raise_open_file_limit


@pytest.fixture
def hard() -> Iterator[int]:
    """Yield the hard limit of open files. The soft limit is low during the test."""
    soft, found = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, found))
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, found))


def test_soft_limit_of_open_files_is_raised_up_to_a_bound(
    hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_open_files().startswith("the limit is 256 open files")
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 300)
    raise_open_file_limit()
    assert open_file_limit() == 300
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 1 << 20)
    raise_open_file_limit()
    expected = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    assert open_file_limit() == expected
    monkeypatch.setattr("ddp_wire.processes.MOST_FILES", 300)
    raise_open_file_limit()
    assert open_file_limit() == expected, "it is never lowered"


PROGRAMS = {
    "agent": "from ddp_agent import __main__ as program; import ddp_agent.processes.warm as owner;"
    " name='start_standby_early'",
    "trainer": "from ddp_trainer.commands import main as program; owner, name = program, '_run'",
    "operator": "from ddp_operator import app as program; owner, name = program, '_run_and_reexec'",
}
"""Each program, and the function with which its work begins."""
OPERATOR = {"DDP_OPERATOR_TRAINER_IMAGE": "trainer:1", "DDP_OPERATOR_LEADER_ELECTION": "false"}
"""Environment variables that the operator needs to start."""
LOW_LIMIT = """
import os, resource

def report(*_):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
    os._exit(0)

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
{program}
setattr(owner, name, report)
program.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_raises_its_limit_of_open_files_before_its_work(program: str) -> None:
    script = LOW_LIMIT.format(program=PROGRAMS[program])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **OPERATOR},
        check=False,
        capture_output=True,
        text=True,
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert ended.stdout, ended.stderr
    assert int(ended.stdout) > 256 or hard <= 256
