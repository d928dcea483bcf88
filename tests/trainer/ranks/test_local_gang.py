"""Gangs of ranks that a command forks. Each command is a process without other threads."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.resolver import with_lasting_lock

pytestmark = pytest.mark.slow

PRELUDE = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.distributed as dist
from ddp_trainer.errors import InputError
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.local_gang import run_ranks

def joined(ranks):
    process_group.join(ranks, torch.device("cpu"), 60)
    total = torch.tensor([float(ranks.rank + 1)])
    if ranks.launched:
        dist.all_reduce(total)
    return total
"""


def command(script: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. A rank that hangs is a failure after a minute."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(script),
        env=os.environ | variables,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.skipif(sys.platform != "linux", reason="replaces functions of the C library")
def test_ranks_start_although_a_store_resolves_addresses_during_the_fork(
    tmp_path: Path,
) -> None:
    """A process that hosts a store would fork ranks that wait forever for the resolver."""
    script = "for ranks in (1, 2, 4, 2): print(int(run_ranks(ranks, joined)), flush=True)"
    done = run(script, **with_lasting_lock(tmp_path))
    assert (done.stdout.split(), done.stderr) == (["1", "3", "10", "3"], "")


def test_error_that_a_rank_reports_is_raised_although_its_peers_fail_after_it() -> None:
    script = """
    def function(ranks):
        joined(ranks)
        if ranks.rank == 1:
            raise InputError("no data")
        dist.barrier()
    try:
        run_ranks(2, function)
    except InputError as error:
        print(error)
    """
    assert run(script).stdout == "no data\n"


def test_other_error_is_raised_with_the_traceback_of_its_rank() -> None:
    script = """
    def fail(ranks):
        if ranks.rank == 1:
            raise ValueError("no model")
        joined(ranks)
    run_ranks(2, fail)
    """
    done = run(script)
    assert done.returncode == 1
    assert "in fail\nValueError: no model" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the ranks")
def test_ranks_end_when_the_command_that_forked_them_ends(tmp_path: Path) -> None:
    script = """
    import pathlib, signal
    def stopped(ranks):
        (pathlib.Path(sys.argv[1]) / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSTOP)  # As a rank that waits for a lock, it runs no code.
    run_ranks(2, stopped)
    """
    process = subprocess.Popen([*command(script), str(tmp_path)])
    ranks: list[int] = []
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the ranks start")
        ranks += [int(file.name) for file in tmp_path.iterdir()]
        process.kill()
        wait_until(lambda: not any(map(is_alive, ranks)), "the ranks end")
    finally:
        for pid in filter(is_alive, [process.pid, *ranks]):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. An orphan that has ended may stay as a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once a condition holds. Fail if it does not hold in time."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
