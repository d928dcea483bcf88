"""Stacks of a rank's threads on request, even while native code holds the interpreter lock.

The rank registers a signal handler in C, which runs no Python code. It costs nothing until the
signal arrives. Standard library only, because agent and trainer use it.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path

_SUFFIX = ".stacks"
_CHARACTERS = 4096


def answer_stack_requests(directory: str | None, local_rank: str | None) -> None:
    """Let this process write the stacks of its threads when `request_stacks` asks for them.

    Do nothing without a directory, or on a system without real-time signals.

    Args:
        directory: Directory of the heartbeats.
        local_rank: Number of this rank on its node.
    """
    if not directory or not local_rank or sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # The run is more important than its observation.
        path = _path(Path(directory), int(local_rank))
        pending = path.with_name(f".{path.name}.tmp")
        faulthandler.register(
            signal.SIGRTMAX, pending.open("w", encoding="utf-8"), all_threads=True
        )
        pending.replace(path)  # It shows that the signal has a handler.


def request_stacks(directory: Path, local_rank: int, pid: int) -> None:
    """Ask a rank for the stacks of its threads, if it answers such requests."""
    # Without the handler, the signal would end the process.
    if sys.platform == "linux" and _path(directory, local_rank).exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGRTMAX)


def read_stacks(directory: Path, local_rank: int) -> str:
    """Return the stacks that a rank has written, or ""."""
    try:
        text = _path(directory, local_rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.strip()[-_CHARACTERS:]


def _path(directory: Path, local_rank: int) -> Path:
    return directory / f"{local_rank}{_SUFFIX}"
