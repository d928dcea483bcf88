"""Tests of process trees with real processes. All processes must end and be reaped."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.processes.supervise import ColdTree
from ddp_wire.processes import blocked_process, descendants
from tests.agent.support import adopting_orphans, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")

SLEEP = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with adopting_orphans():
        yield


def python(code: str, **environment: str) -> ColdTree:
    return ColdTree([sys.executable, "-S", "-c", code], {"PATH": os.defpath, **environment})


def exit_code(tree: ColdTree) -> int:
    wait_until(lambda: tree.poll() is not None, "the process ends")
    assert tree.returncode is not None
    return tree.returncode


def is_running(pid: int) -> bool:
    return pid in descendants(os.getpid())


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the process starts")
    return int(path.read_text())


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
    ids=["success", "exit code", "signal"],
)
def test_poll_returns_the_exit_code_of_the_root_process(code: str, returncode: int) -> None:
    tree = python(code)
    assert exit_code(tree) == returncode
    assert tree.poll() == returncode


def test_running_root_process_has_no_exit_code() -> None:
    tree = python(SLEEP)
    assert tree.poll() is None
    assert is_running(tree.pid)
    tree.kill()


def test_root_process_has_exactly_the_given_environment() -> None:
    code = "import os; raise SystemExit(os.environ['A'] != 'b' or 'HOME' in os.environ)"
    assert exit_code(python(code, A="b")) == 0


def test_signal_reaches_the_root_process() -> None:
    tree = python(SLEEP)
    tree.signal(signal.SIGTERM)
    assert exit_code(tree) == -signal.SIGTERM


def test_signal_after_the_end_does_nothing() -> None:
    tree = python("")
    exit_code(tree)
    tree.signal(signal.SIGTERM)
    assert tree.returncode == 0


def test_grandchild_that_outlives_the_root_process_is_killed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pid"
    tree = python(
        f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
open({str(file)!r}, "w").write(f"{{child.pid}}\\n")
"""
    )
    assert exit_code(tree) == 0
    grandchild = read_pid(file)
    assert is_running(grandchild), "the end of the root must not end it"
    assert tree.kill()
    assert not is_running(grandchild)


def test_process_tree_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    tree = python(
        f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(file)!r}, "w").write(f"{{os.getpid()}}\\n")
time.sleep(600)
"""
    )
    read_pid(file)
    tree.signal(signal.SIGTERM)
    assert tree.poll() is None
    assert tree.kill()
    assert tree.returncode == -signal.SIGKILL


def test_process_tree_that_forks_during_the_kill_is_killed_completely() -> None:
    tree = python(
        f"""
import subprocess, sys
while True:
    subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
"""
    )
    wait_until(lambda: len(descendants(os.getpid())) > 3, "the tree grows")
    assert tree.kill()
    assert descendants(os.getpid()) == []


def test_kill_reaps_all_processes() -> None:
    tree = python(SLEEP)
    tree.kill()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_kill_returns_false_if_a_process_does_not_end() -> None:
    tree = python(SLEEP)
    os.kill(tree.pid, signal.SIGSTOP)
    assert not tree.kill(seconds=-1)
    assert tree.kill()


def test_process_with_parentheses_in_its_name_is_found(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    shutil.copy("/bin/sleep", odd)
    tree = ColdTree([str(odd), "600"], {})
    assert descendants(os.getpid()) == [tree.pid]
    assert tree.kill()


def test_zombie_does_not_count_as_running() -> None:
    tree = python("")
    stat = Path(f"/proc/{tree.pid}/stat")
    wait_until(
        lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the process has ended"
    )
    assert descendants(os.getpid()) == []
    assert exit_code(tree) == 0


def test_stopped_child_of_a_process_is_found(tmp_path: Path) -> None:
    """A rank may wait for a stopped child, for example a data worker."""
    path = tmp_path / "child"
    code = f"""
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}])
open({str(path)!r}, "w").write(f"{{child.pid}}\\n")
time.sleep(600)
"""
    tree = python(code)
    child = read_pid(path)
    assert blocked_process(tree.pid) == ""
    os.kill(child, signal.SIGSTOP)
    found = f"its child process {child} is stopped by a signal"
    wait_until(lambda: blocked_process(tree.pid) == found, "the stopped child is found")
    os.kill(tree.pid, signal.SIGSTOP)
    own = f"its process {tree.pid} is stopped by a signal"
    wait_until(lambda: blocked_process(tree.pid) == own, "the stopped process itself comes first")
    assert tree.kill()
