"""Read the stacks of a rank's threads, even while native code holds the interpreter lock.

The rank registers a signal handler in C, which runs no Python code. The handler costs nothing until
the signal arrives. This module imports only the standard library, because agent and trainer share
it.
"""

import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path

_SUFFIX = ".stacks"
_CHARACTERS = 4096
_LONGEST_ANSWER = 64 << 10
_LAUNCHER = "/ddp_agent/launcher/"


def answer_stack_requests(directory: str | None, local_rank: str | None) -> None:
    """Register a handler that writes this process's stacks when `request_stacks` asks for them.

    Do nothing without a directory, or on a system without real-time signals.

    Args:
        directory: Heartbeat directory.
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
    """Ask a rank for the stacks of its threads, if the rank has registered the handler."""
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


def answers(directory: Path, local_rank: int) -> bool:
    """Return whether a rank has registered the handler that answers requests."""
    return _path(directory, local_rank).exists()


def stacks_size(directory: Path, local_rank: int) -> int:
    """Return how many bytes of stacks a rank has written since its start."""
    try:
        return _path(directory, local_rank).stat().st_size
    except OSError:
        return 0


def new_stacks(directory: Path, local_rank: int, begin: int) -> str:
    """Return the stacks that a rank has written after its first `begin` bytes, or "".

    The frames that started the user's program are left out.
    """
    try:
        with _path(directory, local_rank).open("rb") as file:
            file.seek(begin)
            return without_launcher(file.read(_LONGEST_ANSWER).decode("utf-8", "replace"))
    except OSError:
        return ""


def without_launcher(stacks: str) -> str:
    """Return stacks without the frames that started the user's program, which are the outermost."""
    kept, hidden = [], False
    for line in stacks.strip().splitlines():
        hidden = line.startswith("  File ") and (hidden or _LAUNCHER in line)
        if not hidden:
            kept.append(line)
    return "\n".join(kept)


def _path(directory: Path, local_rank: int) -> Path:
    return directory / f"{local_rank}{_SUFFIX}"
