"""Files through which the launcher reports to the agent which ranks of this node run.

Only the launcher knows which of its ranks have exited, and only it can ask the rendezvous store
about the other nodes. The agent does not import torch, so the two processes share these files.

Process: launcher and agent (loop).
"""

import contextlib
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ddp_wire.messages import Failure

_FILE = "ranks.state"
_PROBLEMS_FILE = "exit-problems.state"
_KILLED_SUFFIX = ".killed"
_FAILURES = TypeAdapter(list[Failure])


class RankProcesses(BaseModel):
    """State of the rank processes of this node, as the launcher reports it."""

    first_rank: int
    """Global rank of local rank 0."""
    running: dict[int, int] = Field(default_factory=dict)
    """Process ids of the ranks that have not exited, by local rank."""
    master_port: int = 0
    """Port of the store of the ranks' process group, or 0 if unknown."""
    any_left: bool = False
    """Whether a rank of any node has exited with code 0."""

    def write(self, directory: Path) -> None:
        """Write the state to the file in the directory of the heartbeats."""
        _replace(directory / _FILE, self.model_dump_json().encode())


def read_processes(directory: Path) -> RankProcesses | None:
    """Return the newest reported state, or None before the launcher has started the ranks."""
    try:
        return RankProcesses.model_validate_json((directory / _FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def mark_killed(directory: Path, local_rank: int) -> None:
    """Record for the launcher that the agent kills this rank after its work was done."""
    _killed_mark(directory, local_rank).touch()


def is_marked_killed(directory: Path, local_rank: int) -> bool:
    """Return whether the agent has killed this rank after its work was done."""
    return _killed_mark(directory, local_rank).exists()


def write_exit_failures(directory: Path, failures: list[Failure]) -> None:
    """Write the failures of ranks that failed after their work was done."""
    _replace(directory / _PROBLEMS_FILE, _FAILURES.dump_json(failures))


def read_exit_failures(directory: Path) -> list[Failure]:
    """Return the failures of ranks that failed after their work was done."""
    try:
        return _FAILURES.validate_json((directory / _PROBLEMS_FILE).read_bytes())
    except (OSError, ValidationError):
        return []


def _killed_mark(directory: Path, local_rank: int) -> Path:
    return directory / f"{local_rank}{_KILLED_SUFFIX}"


def _replace(path: Path, content: bytes) -> None:
    pending = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(OSError):  # A full disk must not end a healthy run.
        pending.write_bytes(content)
        pending.replace(path)
