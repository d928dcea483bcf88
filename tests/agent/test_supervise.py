"""Process trees, with real processes: what is started is ended, whole, and reaped."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_agent.supervise import ProcessTree
from ddp_wire.processes import descendants
from tests.agent.support import orphanage, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as PID 1 does")

SLEEP = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _reaper() -> Iterator[None]:
    with orphanage():
        yield


def python(code: str, **environment: str) -> ProcessTree:
    return ProcessTree([sys.executable, "-S", "-c", code], {"PATH": os.defpath, **environment})


def ended(tree: ProcessTree) -> int:
    wait_until(lambda: tree.poll() is not None, "the process ends")
    assert tree.returncode is not None
    return tree.returncode


def lives(pid: int) -> bool:
    return pid in descendants(os.getpid())


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the process starts")
    return int(path.read_text())


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
    ids=["well", "exit code", "signal"],
)
def test_how_the_root_ended(code: str, returncode: int) -> None:
    tree = python(code)
    assert ended(tree) == returncode
    assert tree.poll() == returncode


def test_a_root_that_runs_has_no_exit_code_yet() -> None:
    tree = python(SLEEP)
    assert tree.poll() is None
    assert lives(tree.pid)
    tree.kill()


def test_the_environment_is_the_one_that_is_given() -> None:
    code = "import os; raise SystemExit(os.environ['A'] != 'b' or 'HOME' in os.environ)"
    assert ended(python(code, A="b")) == 0


def test_a_signal_reaches_the_root() -> None:
    tree = python(SLEEP)
    tree.signal(signal.SIGTERM)
    assert ended(tree) == -signal.SIGTERM


def test_a_signal_after_the_end_does_nothing() -> None:
    tree = python("")
    ended(tree)
    tree.signal(signal.SIGTERM)
    assert tree.returncode == 0


def test_a_grandchild_in_a_session_of_its_own_outlives_the_root_and_is_killed(
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
    assert ended(tree) == 0
    grandchild = read_pid(file)
    assert lives(grandchild), "the root's death is not enough"
    assert tree.kill()
    assert not lives(grandchild)


def test_a_tree_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
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


def test_a_tree_that_forks_while_it_is_killed_is_killed_whole() -> None:
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


def test_after_a_kill_nothing_is_left_to_reap() -> None:
    tree = python(SLEEP)
    tree.kill()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_kill_that_does_not_succeed_in_time_says_so() -> None:
    tree = python(SLEEP)
    os.kill(tree.pid, signal.SIGSTOP)
    assert not tree.kill(seconds=-1)
    assert tree.kill()


def test_a_process_is_found_whatever_its_name_is(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    shutil.copy("/bin/sleep", odd)
    tree = ProcessTree([str(odd), "600"], {})
    assert descendants(os.getpid()) == [tree.pid]
    assert tree.kill()


def test_a_zombie_does_not_live() -> None:
    tree = python("")
    stat = Path(f"/proc/{tree.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "it has ended")
    assert descendants(os.getpid()) == []
    assert ended(tree) == 0
