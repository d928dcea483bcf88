"""Start the cluster's long-running processes detached, record them, find them and stop them.

A process records itself (its line of /proc/PID/stat) before it executes the program, so that it
never runs unrecorded. The start time in that line distinguishes a reused process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.harness import cgroups, paths
from tests.harness.errors import HarnessError
from tests.harness.run import poll, tail

_START: Final = (
    'read -r stat < "/proc/$$/stat" && printf "%s\\n" "$stat" > "$1" '
    '&& printf "%s\\n" "$$" > "$2" && shift 2 && exec "$@"'
)
_KILL_LIMIT_S: Final = 20.0
# Children of this Python process, which must reap them. Init reaps all others.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Service:
    """One long-running process of the cluster.

    Attributes:
        name: Name of the record, for example `kubelet-node-1`.
        argv: The program with its arguments.
        search_path: Value of PATH.
        cgroup: Group below the harness's own for the process and its children.
    """

    name: str
    argv: tuple[str, ...]
    search_path: str
    cgroup: str = "daemons"

    @property
    def log(self) -> Path:
        """Log file, to which the output of the process is appended."""
        return paths.STATE / "logs" / f"{self.name}.log"

    def start(self) -> None:
        """Start the process unless it runs, and save what is needed to start it again."""
        if alive(self.name):
            return
        _records().mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        _spec_file(self.name).write_text(json.dumps(asdict(self)), encoding="utf-8")
        group = cgroups.tracking_group(self.cgroup) / "cgroup.procs"
        stat_file = _stat_file(self.name)
        stat_file.unlink(missing_ok=True)
        argv = ["/bin/sh", "-c", _START, "sh", stat_file, group, *self.argv]
        environment = {"PATH": self.search_path, "HOME": str(paths.STATE)}
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        _children[child.pid] = child
        poll(
            lambda: child.poll() is not None or (stat_file.exists() and alive(self.name)),
            deadline_s=_KILL_LIMIT_S,
            interval_s=0.002,
        )


def recorded(name: str) -> Service:
    """Return the service with this name, with the settings of its last start.

    Raises:
        HarnessError: No service with this name was ever started.
    """
    try:
        document = json.loads(_spec_file(name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise HarnessError(f"The cluster has no process named {name}.") from error
    return Service(**(document | {"argv": tuple(document["argv"])}))


def names() -> list[str]:
    """Return the names of all recorded services."""
    return sorted(file.stem for file in _records().glob("*.stat"))


def alive(name: str) -> bool:
    """Return whether the recorded process of this name still runs."""
    found = _open(name)
    if found is None:
        return False
    os.close(found)
    return True


def send(name: str, number: signal.Signals) -> None:
    """Send a signal to the recorded process unless it has ended."""
    found = _open(name)
    if found is None:
        return
    try:
        signal.pidfd_send_signal(found, number)
    except ProcessLookupError:
        return
    finally:
        os.close(found)


def stop(
    name: str, number: signal.Signals = signal.SIGTERM, deadline_s: float = _KILL_LIMIT_S
) -> None:
    """Send a signal and wait for the end. Send SIGKILL after `deadline_s` seconds.

    Raises:
        HarnessError: The process does not end after SIGKILL.
    """
    send(name, number)
    if poll(lambda: not alive(name), deadline_s=deadline_s, interval_s=0.02):
        return
    send(name, signal.SIGKILL)
    if not poll(lambda: not alive(name), deadline_s=_KILL_LIMIT_S, interval_s=0.02):
        raise HarnessError(f"The process {name} does not end after SIGKILL.")


def wait_for(
    what: str, ready: Callable[[], bool], *, deadline_s: float, needs: tuple[str, ...] = ()
) -> None:
    """Wait for a condition while the processes that it depends on are alive.

    Args:
        what: The condition, for the error message.
        ready: Returns whether the condition holds.
        deadline_s: Seconds to wait.
        needs: Names of the processes that must stay alive during the wait.

    Raises:
        HarnessError: One of them ended, or the time is over; the text ends with their logs.
    """
    died: list[str] = []

    def over() -> bool:
        if ready():
            return True
        died.extend(name for name in needs if not alive(name))
        return bool(died)

    if poll(over, deadline_s=deadline_s) and not died:
        return
    reason = f"{died[0]} ended" if died else f"{deadline_s:.0f} s have passed"
    logs = "".join(f"\n--- {name}\n{log_tail(name)}" for name in died[:1] or needs)
    raise HarnessError(f"Waiting for {what} failed: {reason}.{logs}")


def log_tail(name: str) -> str:
    """Return the last lines of a process's log."""
    file = paths.STATE / "logs" / f"{name}.log"
    try:
        return tail(file.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return "(no log)"


def _records() -> Path:
    return paths.STATE / "processes"


def _spec_file(name: str) -> Path:
    return _records() / f"{name}.json"


def _stat_file(name: str) -> Path:
    return _records() / f"{name}.stat"


def _open(name: str) -> int | None:
    """Return a descriptor of the recorded process, or None if that process has ended."""
    try:
        line = _stat_file(name).read_text(encoding="utf-8")
        pid = int(line.split(" ", 1)[0])
        descriptor = os.pidfd_open(pid)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    if pid in _children:
        _children[pid].poll()
    if not _same_and_running(pid, line):
        os.close(descriptor)
        return None
    return descriptor


def _same_and_running(pid: int, recorded_line: str) -> bool:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    now, then = _fields(line), _fields(recorded_line)
    return now[0] not in "ZX" and now[19] == then[19]


def _fields(stat_line: str) -> list[str]:
    """Return the fields after the command: the first is the state, the 20th the start time."""
    return stat_line.rsplit(")", 1)[1].split()
