"""Descendants and limits of a process. Imports only the standard library, for `ddpjob run`."""

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

MOST_FILES = 1 << 20
"""Highest open-file limit that a process sets: some programs visit each possible descriptor."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, as PID 1 is. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends. Linux only.

    Args:
        parent: Process id of the parent. If it has ended already, this process exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def raise_open_file_limit() -> None:
    """Raise this process's limit of open files as far as the kernel allows.

    Its children inherit it. Container runtimes often set a low soft limit, for programs that use
    select(2); no program of this project does so for many descriptors.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if open_file_limit() < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has another maximum.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_file_limit() -> int:
    """Return this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def describe_open_files() -> str:
    """Return a sentence about this process's limit of open files."""
    return f"the limit is {open_file_limit()} open files (ulimit -n of the container runtime)"


def is_readable(descriptor: int, seconds: float) -> bool:
    """Return whether input arrives within `seconds`. select(2) fails for descriptors above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def children(parent: int) -> list[int]:
    """Return the process ids of the children of a process, without zombies."""
    return [p for p, (ppid, state) in _parents().items() if ppid == parent and state != "Z"]


def descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of a process, without zombies."""
    parents = _parents()
    found: list[int] = []
    frontier = [root]
    while frontier:
        parent = frontier.pop()
        direct = [pid for pid, (ppid, _) in parents.items() if ppid == parent]
        frontier += direct
        found += [pid for pid in direct if parents[pid][1] != "Z"]
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended. A zombie has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It runs as another user.
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and its descendants in seconds. 0 without /proc."""
    ticks = 0
    for pid in (root, *descendants(root)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


_BLOCKED_STATES = {
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel, for example for a file system that does not answer",
}


def blocked_process(root: int) -> str:
    """Return why the kernel does not run a process or one of its descendants, or ""."""
    for pid in (root, *descendants(root)):
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state in _BLOCKED_STATES:
                who = f"process {pid}" if pid == root else f"child process {pid}"
                return f"its {who} {_BLOCKED_STATES[state]}"
    return ""


def _parents() -> dict[int, tuple[int, str]]:
    """Return the parent process id and the state of every process."""
    if not Path("/proc/self/stat").exists():
        return _parents_by_ps()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            # The command name, in parentheses, may itself contain parentheses and spaces.
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = (int(fields[1]), fields[0])
    return found


def _parents_by_ps() -> dict[int, tuple[int, str]]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,state="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in listing.splitlines())
    return {int(pid): (int(ppid), state[0]) for pid, ppid, state in rows}
