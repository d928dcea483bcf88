"""Start a gang of ranks on this machine, connected over loopback.

The ranks are forks of the command, which has already imported torch, so that they start quickly. A
fork of a process with threads can hang, so the command must have no other threads. Rank 0 hosts the
store of the process group, because the store has a thread. The command binds the store's port
before the fork, so that no other process can take the port. Each rank leaves its result in a file.
"""

import os
import pickle
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Imported before any fork, so that the ranks do not import them again.
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import ProcessException, start_processes

from ddp_trainer.errors import ReportedError, reported_error
from ddp_trainer.ranks import process_group
from ddp_trainer.ranks.environment import Ranks
from ddp_wire.processes import end_with_parent

_LOOPBACK = "127.0.0.1"


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on every rank of a new gang.

    The ranks are forks of this process, so this process must have no other threads. torch's own
    launcher has threads, with which a rank can hang (docs/develop/decisions/0006-standby.md).

    Args:
        world_size: Number of ranks. A single rank has no process group.
        function: Function that each rank calls with its `Ranks` and then `arguments`.
        arguments: Additional arguments, the same for all ranks.

    Returns:
        The result of rank 0.

    Raises:
        ReportedError: If a rank raised a ReportedError.
        ProcessException: If a rank failed in another way.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
        socket.create_server((_LOOPBACK, 0)) as listener,
    ):
        gang = _Gang(world_size, listener, Path(folder), os.getpid())
        try:
            start_processes(gang.run, (function, arguments), world_size, start_method="fork")
        except ProcessException:
            gang.raise_reported()  # A rank that reported an error is why another one failed.
            raise
        gang.raise_reported()
        return gang.answer(0)[1]


@dataclass(frozen=True, slots=True)
class _Gang:
    """State that the ranks of a gang share with the process that starts them."""

    world_size: int
    listener: socket.socket
    """Socket on which rank 0's store accepts connections."""
    folder: Path
    """Directory for the result files of the ranks."""
    parent: int
    """Process id of the command. The ranks end when the command ends."""

    def run(self, rank: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run one rank, and write its result file."""
        end_with_parent(self.parent)
        os.environ.update(self._variables(rank))
        store = self._host_store() if rank == 0 else None
        answer = self._call(function, arguments)
        (self.folder / str(rank)).write_bytes(pickle.dumps(answer))
        del store

    def answer(self, rank: int) -> tuple[tuple[int, str] | None, Any]:
        """Return a rank's error as (exit code, message) or None, and the rank's result."""
        file = self.folder / str(rank)
        return pickle.loads(file.read_bytes()) if file.exists() else (None, None)  # noqa: S301 (a fork of this process wrote it)

    def raise_reported(self) -> None:
        """Raise the error that a rank has reported, if one has."""
        for rank in range(self.world_size):
            error, _ = self.answer(rank)
            if error:
                raise reported_error(*error)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        alone = self.world_size == 1
        ranks = Ranks() if alone else Ranks.from_environment(os.environ)
        try:
            result = function(ranks, *arguments)
        except ReportedError as error:
            return (int(error.code), str(error)), None
        process_group.leave()
        return None, result

    def _variables(self, rank: int) -> dict[str, str]:
        """Return the variables that torchrun would set for a rank."""
        world_size = str(self.world_size)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(self.listener.getsockname()[1]),
            # The store has its port already, so that no other process can take it first.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def _host_store(self) -> TCPStore:
        """Host the store of the process group. Its thread must not be in a process that forks."""
        return TCPStore(
            _LOOPBACK,
            self.listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=os.dup(self.listener.fileno()),
        )
